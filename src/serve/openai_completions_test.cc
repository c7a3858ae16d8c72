#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::answer;
using testing::expect_api_error;
using testing::streamed;

ordered_json asked(const char* members) {
  ordered_json body = {{"prompt", "hello"}, {"max_tokens", 6}, {"temperature", 0}, {"ignore_eos", true}};
  body.update(ordered_json::parse(members));
  return body;
}

class Completions : public ::testing::Test {
 protected:
  ordered_json complete(const char* members) { return answer(completions, service(), asked(members)); }
  Service& service() { return tiny_.service(); }
  testing::TinyService tiny_;
};

TEST_F(Completions, InOnePieceAndAsAStream) {
  const ordered_json body = complete("{}");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
  std::string text;
  const auto chunks = streamed(completions, service(), asked("{}"));
  for (const ordered_json& chunk : chunks) text += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(body["choices"][0]["text"], text);
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
}

TEST_F(Completions, SixteenTokensUnlessAsked) {
  ordered_json body = asked("{}");
  body.erase("max_tokens");
  EXPECT_EQ(answer(completions, service(), body)["usage"]["completion_tokens"], 16);
  body["n_predict"] = 3;
  EXPECT_EQ(answer(completions, service(), body)["usage"]["completion_tokens"], 3);
}

TEST_F(Completions, NullAndMinusOneAreNoLimit) {
  for (const char* limit : {"null", "-1"}) {
    const std::string members = R"({"regex": "[a-z]{40}", "ignore_eos": false, "max_tokens": )" + std::string(limit);
    EXPECT_EQ(complete((members + "}").c_str())["usage"]["completion_tokens"], 41) << limit;
  }
}

TEST_F(Completions, CannotHaveMoreTokensAtLeastThanAtMost) {
  const auto call = [&](const char* members) {
    return [&, members] { completions(testing::posted("/v1", asked(members).dump()), service(), {}); };
  };
  expect_api_error(call(R"({"min_tokens": 7})"), 400, "min_tokens", "at most the 6 tokens");
  expect_api_error(call(R"({"min_new_tokens": 7})"), 400, "min_new_tokens");
  EXPECT_EQ(complete(R"({"min_tokens": 6})")["usage"]["completion_tokens"], 6);
}

TEST(CompletionsOfSeveralPrompts, AreLetInTogether) {
  testing::TinyService tiny({.change = [](ServiceOptions& options) { options.most_jobs_of_a_key = 1; }});
  const auto exchange = testing::posted("/v1/completions", asked(R"({"prompt": ["one", "two"], "n": 2})").dump());
  completions(exchange, tiny.service(), {.key = 0});
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
}

TEST_F(Completions, SeveralPrompts) {
  const ordered_json body = complete(R"({"prompt": ["one", "two", "one"], "n": 2})");
  ASSERT_EQ(body["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["choices"][0]["text"], body["choices"][1]["text"]) << "greedy";
  EXPECT_EQ(body["choices"][0]["text"], body["choices"][4]["text"]);
  EXPECT_EQ(body["choices"][2]["text"], complete(R"({"prompt": "two"})")["choices"][0]["text"]);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 12);
  EXPECT_EQ(body["usage"]["completion_tokens"], 36);
}

TEST_F(Completions, PromptsOfTokens) {
  const ordered_json text = complete("{}");
  const ordered_json tokens = complete(R"({"prompt": [256, 104, 101, 108, 108, 111]})");
  EXPECT_EQ(tokens["choices"][0]["text"], text["choices"][0]["text"]);
  EXPECT_EQ(complete(R"({"prompt": [[256, 104], [256, 105]]})")["choices"].size(), 2u);
}

TEST_F(Completions, Echo) {
  const std::string text = complete("{}")["choices"][0]["text"];
  EXPECT_EQ(complete(R"({"echo": true})")["choices"][0]["text"], "hello" + text);
  EXPECT_EQ(complete(R"({"echo": true, "prompt": [256, 104, 105], "max_tokens": 0})")["choices"][0]["text"], "hi");
  std::string echoed;
  for (const ordered_json& chunk : streamed(completions, service(), asked(R"({"echo": true})")))
    echoed += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(echoed, "hello" + text);
}

TEST_F(Completions, Logprobs) {
  const ordered_json logprobs = complete(R"({"logprobs": 2, "max_tokens": 3})")["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 3u);
  ASSERT_EQ(logprobs["token_logprobs"].size(), 3u);
  EXPECT_EQ(logprobs["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_TRUE(complete("{}")["choices"][0]["logprobs"].is_null());
}

TEST_F(Completions, LogprobsOfThePrompt) {
  const ordered_json body = complete(R"({"logprobs": 1, "echo": true, "max_tokens": 2})");
  const ordered_json& logprobs = body["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 8u);
  EXPECT_EQ(logprobs["tokens"][1], "h");
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_LT(logprobs["token_logprobs"][1].get<double>(), 0);
  EXPECT_EQ(logprobs["text_offset"][5], 4) << "of the o in hello";
  EXPECT_EQ(logprobs["text_offset"][6], 5) << "of what follows";

  const ordered_json only = complete(R"({"logprobs": 1, "echo": true, "max_tokens": 0})");
  EXPECT_EQ(only["choices"][0]["logprobs"]["token_logprobs"][5], logprobs["token_logprobs"][5]);
  EXPECT_EQ(only["usage"]["completion_tokens"], 0);
}

TEST_F(Completions, StopTexts) {
  constexpr const char* kLetters = R"({"max_tokens": 40, "regex": "[a-z]{20}[A-Z]{20}"})";
  const std::string text = complete(kLetters)["choices"][0]["text"];
  const std::string stop = text.substr(19, 2);
  ordered_json body = asked(kLetters);
  body["stop"] = stop;
  const ordered_json stopped = answer(completions, service(), body);
  EXPECT_EQ(stopped["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(stopped["choices"][0]["matched_stop"], stop);
}

TEST_F(Completions, WhatIsRefused) {
  const auto expect = [&](const char* members, const std::string& param, int status = 400) {
    SCOPED_TRACE(members);
    const auto exchange = testing::posted("/v1", asked(members).dump());
    expect_api_error([&] { completions(exchange, service(), {}); }, status, param);
  };
  expect(R"({"suffix": "x"})", "suffix");
  expect(R"({"best_of": 2})", "best_of");
  expect(R"({"prompt": null})", "prompt");
  expect(R"({"prompt": []})", "prompt");
  expect(R"({"logprobs": 21})", "logprobs");
  expect(R"({"logprobs": true})", "logprobs");
  expect(R"({"model": ["other"]})", "model");
  expect(R"({"prompt": ["a", "b"], "n": 33})", "prompt");
  EXPECT_EQ(complete(R"({"best_of": 2, "n": 2})")["choices"].size(), 2u);
  EXPECT_EQ(complete(R"({"suffix": null, "best_of": 1})")["choices"].size(), 1u);
  ordered_json long_prompt = asked("{}");
  long_prompt["prompt"] = std::string(511, 'a');
  expect_api_error([&] { completions(testing::posted("/v1", long_prompt.dump()), service(), {}); }, 400, "prompt",
                   "512");
  long_prompt["prompt"] = std::string(510, 'a');
  EXPECT_EQ(answer(completions, service(), long_prompt)["usage"]["completion_tokens"], 1);
}

}  // namespace
}  // namespace quire::serve
