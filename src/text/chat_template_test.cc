// What a chat template adds to the language, whose own tests are jinja/template_test.cc and jinja/limits_test.cc. Whole
// templates of models are compared in tests/end_to_end/test_chat_template.py.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace quire::text {
namespace {

using nlohmann::ordered_json;

TEST(ChatTemplate, MessagesBecomeText) {
  const std::string source =
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const ChatTemplate made(source);
  const ordered_json context = {
      {"bos_token", "<s>"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"add_generation_prompt", true}};
  EXPECT_EQ(made.render(context), "<s><user>hi<assistant>");
  EXPECT_EQ(made.source(), source);
}

// What the caller's messages lead to is Refused; a source or a use that is wrong is not.
TEST(TemplateLimits, WhatTheCallerSentIsRefused) {
  const ChatTemplate raises("{{ raise_exception('no') }}"), shows("{{ a }}");
  EXPECT_THROW(raises.render(ordered_json::object()), Refused);
  EXPECT_THROW(shows.render({{"a", {1, 2, 3}}}, {.value_items = 2}), Refused);
  const auto kind_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const Refused&) {
      return "refused";
    } catch (const CheckError&) {
      return "wrong";
    }
    return "fine";
  };
  EXPECT_EQ(kind_of([] { ChatTemplate("{{"); }), "wrong");
  EXPECT_EQ(kind_of([&] { shows.render(ordered_json::array()); }), "wrong");
}

}  // namespace
}  // namespace quire::text
