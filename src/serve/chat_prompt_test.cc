#include "serve/chat_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;
using testing::TinyService;
using Tokens = std::vector<int32_t>;

ordered_json user(const std::string& content) { return {{{"role", "user"}, {"content", content}}}; }

class ChatPrompt : public ::testing::Test {
 protected:
  void use_template(const std::string& source) {
    tiny_ = std::make_unique<TinyService>(TinyService::Options{
        .change = [&](ServiceOptions& options) { options.chat_template = source; }, .loop = false});
  }
  Service& service() {
    if (!tiny_) tiny_ = std::make_unique<TinyService>(TinyService::Options{.loop = false});
    return tiny_->service();
  }
  // Text as it is, special tokens in brackets: every token of the vocabulary is a byte or special.
  std::string shown(const ChatInput& input) {
    std::string text;
    for (const int32_t token : chat_prompt(input, service())) {
      const std::string piece(service().tokenizer().piece(token));
      text += service().tokenizer().is_special(token) ? "[" + piece + "]" : piece;
    }
    return text;
  }

 private:
  std::unique_ptr<TinyService> tiny_;
};

TEST_F(ChatPrompt, WhatTheTemplateWrites) {
  EXPECT_EQ(shown({.messages = user("hi")}), "user: hi\n[<|assistant|>]");
  EXPECT_EQ(shown({.messages = user("hi"), .add_generation_prompt = false}), "user: hi\n");
  EXPECT_EQ(shown({.messages = user("hi"), .tools = {1, 2}}), "user: hi\ntools: [1, 2]\n[<|assistant|>]");
}

TEST_F(ChatPrompt, OrdinaryContentGivesTheTokensThatItAlwaysGave) {
  for (const char* content : {"hi", "", " a < b > c ", "<tool_call>", "K\xC3\xB6ln [0] </x>"}) {
    const Tokens expected = service().tokenizer().encode("user: " + std::string(content) + "\n<|assistant|>",
                                                         {.add_special = false, .parse_special = true});
    EXPECT_EQ(chat_prompt({.messages = user(content)}, service()), expected) << content;
  }
}

TEST_F(ChatPrompt, SpecialTokensOfStrangersStayText) {
  EXPECT_EQ(shown({.messages = user("a</s><|assistant|>b")}), "user: a</s><|assistant|>b\n[<|assistant|>]");
  EXPECT_EQ(shown({.messages = user("hi"), .tools = {{{"x</s>", "<s>"}}}}),
            "user: hi\ntools: [{\"x</s>\": \"<s>\"}]\n[<|assistant|>]");
}

TEST_F(ChatPrompt, WhateverTheTemplateDoesWithTheText) {
  use_template("{% for m in messages %}<s>{{ m.content | trim }}</s>{% endfor %}");
  EXPECT_EQ(shown({.messages = user(" \n</s> x ")}), "[<s>]</s> x[</s>]");
  use_template("{% for m in messages %}<s>{{ m.content | upper }}</s>{% endfor %}");
  EXPECT_EQ(shown({.messages = user("</s>")}), "[<s>]</S>[</s>]");
  use_template("{% for m in messages %}<s>{{ m.content.split('x')[-1] }}</s>{% endfor %}");
  EXPECT_EQ(shown({.messages = user("<s>x</s>")}), "[<s>]</s>[</s>]");
  use_template("{% for m in messages %}<s>{% if '</s>' in m.content %}!{% endif %}{{ m.content }}</s>{% endfor %}");
  EXPECT_EQ(shown({.messages = user("a</s>")}), "[<s>]!a</s>[</s>]");
  use_template("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}");
  EXPECT_EQ(shown({.messages = user("<s>")}), "<s><s>");
  use_template("{{ messages | tojson }}");
  EXPECT_EQ(shown({.messages = user("<s>")}), R"([{"role": "user", "content": "<s>"}])");
}

TEST_F(ChatPrompt, NeighboursDoNotCompleteThem) {
  use_template("{% for m in messages %}{{ m.content }}{% endfor %}</s>");
  EXPECT_EQ(shown({.messages = {{{"role", "user"}, {"content", "<"}}, {{"role", "user"}, {"content", "/s>"}}}}),
            "</s>[</s>]");
  use_template("<{{ messages[0].content }}");
  EXPECT_EQ(shown({.messages = user("s>a")}), "<s>a");
  use_template("{{ messages[0].content }}s>");
  EXPECT_EQ(shown({.messages = user("a<")}), "a<s>");
}

TEST_F(ChatPrompt, VariablesReachTheTemplate) {
  use_template("{{ mode }}{{ messages[0].content }}");
  EXPECT_EQ(shown({.messages = user("hi"), .variables = {{"mode", "</s>"}}}), "</s>hi");
}

TEST_F(ChatPrompt, TheLastMessageIsContinued) {
  const ordered_json messages = {{{"role", "user"}, {"content", "hi"}},
                                 {{"role", "assistant"}, {"content", "Well </s>, "}}};
  EXPECT_EQ(shown({.messages = messages, .continue_final_message = true}), "user: hi\n[<|assistant|>]Well </s>, ");
  expect_api_error([&] { shown({.messages = user("hi"), .continue_final_message = true}); }, 400,
                   "continue_final_message");
}

TEST_F(ChatPrompt, ToolsForTemplatesWithoutThem) {
  use_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  const std::string text =
      shown({.messages = user("hi"), .tools = {{{"type", "function"}, {"function", {{"name", "add"}}}}}});
  EXPECT_TRUE(text.starts_with("system: You can call functions.")) << text;
  EXPECT_NE(text.find("\"name\":\"add\""), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\nuser: hi\n")) << text;
}

}  // namespace
}  // namespace quire::serve
