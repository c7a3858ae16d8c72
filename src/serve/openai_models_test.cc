#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

TEST(Models, TheOneThatIsServed) {
  testing::TinyService tiny({.loop = false});
  const auto body_at = [&](const char* path) {
    const auto exchange = testing::got(path);
    models(exchange, tiny.service());
    return ordered_json::parse(exchange->body());
  };
  const ordered_json list = body_at("/v1/models");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["max_model_len"], testing::kContext);
  EXPECT_EQ(body_at("/v1/models/tiny"), list["data"][0]);
  testing::expect_api_error([&] { body_at("/v1/models/other"); }, 404, "model", "other");
}

TEST(Models, MayHaveSeveralNames) {
  testing::TinyService tiny({.change = [](ServiceOptions& options) { options.aliases = {"gpt-4o", "org/tiny"}; }});
  const auto list = testing::got("/v1/models");
  models(list, tiny.service());
  const ordered_json listed = ordered_json::parse(list->body());
  std::string names;
  for (const auto& model : listed["data"]) names += model["id"].get<std::string>() + " ";
  EXPECT_EQ(names, "tiny gpt-4o org/tiny ");
  const auto one = testing::got("/v1/models/org/tiny");
  models(one, tiny.service());
  EXPECT_EQ(ordered_json::parse(one->body())["id"], "org/tiny");

  const auto named = [&](testing::Handler call, ordered_json body, const char* name) {
    body["model"] = name;
    return testing::answer(call, tiny.service(), body)["model"].get<std::string>();
  };
  const ordered_json chat = ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})");
  for (const char* name : {"tiny", "default", "whatever a program was written for", ""})
    EXPECT_EQ(named(chat_completions, chat, name), "tiny") << "there is no other that could be meant";
  EXPECT_EQ(named(chat_completions, chat, "gpt-4o"), "gpt-4o");
  EXPECT_EQ(named(completions, {{"prompt", "a"}, {"max_tokens", 1}}, "gpt-4o"), "gpt-4o");
  EXPECT_EQ(named(embeddings, {{"input", "a"}}, "org/tiny"), "org/tiny");
  EXPECT_EQ(named(embeddings, {{"input", "a"}}, "text-embedding-3-small"), "tiny");
}

}  // namespace
}  // namespace quire::serve
