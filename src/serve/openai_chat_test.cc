#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::answer;
using testing::answered;
using testing::streamed;
using testing::TinyService;

ordered_json hello(int32_t max_tokens = 8) {
  return {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true}};
}

ordered_json with(ordered_json body, const char* members) {
  body.update(ordered_json::parse(members));
  return body;
}

class Chat : public ::testing::Test {
 protected:
  Service& service() { return tiny_.service(); }
  TinyService tiny_;
};

// The deltas' contents of one choice put together.
std::string content_of(const std::vector<ordered_json>& chunks, int index = 0) {
  std::string text;
  for (const ordered_json& chunk : chunks)
    for (const ordered_json& choice : chunk["choices"])
      if (choice["index"] == index && choice["delta"].contains("content"))
        text += choice["delta"]["content"].get<std::string>();
  return text;
}

TEST_F(Chat, InOnePiece) {
  const ordered_json body = answer(chat_completions, service(), hello());
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_GT(body["created"].get<int64_t>(), 1'600'000'000);
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_FALSE(body["choices"][0]["message"]["content"].get<std::string>().empty());
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 13);
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
  EXPECT_EQ(body["usage"]["total_tokens"], 21);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(Chat, AStreamIsTheSameText) {
  const ordered_json whole = answer(chat_completions, service(), hello(32));
  const std::vector<ordered_json> chunks = streamed(chat_completions, service(), hello(32));
  ASSERT_GE(chunks.size(), 3u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], ordered_json::parse(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], content_of(chunks));
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
  for (const ordered_json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["id"], chunks[0]["id"]);
    EXPECT_FALSE(chunk.contains("usage"));
  }
}

TEST_F(Chat, UsageInAStream) {
  const auto chunks = streamed(chat_completions, service(),
                               with(hello(), R"({"stream_options": {"include_usage": true}, "stream": true})"));
  for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i].at("usage").is_null());
  EXPECT_EQ(chunks.back()["choices"], ordered_json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 8);
}

TEST_F(Chat, CachedTokensAreTold) {
  const ordered_json body = with(hello(), R"({"messages": [{"role": "user", "content":
      "a text that is longer than some pages of sixteen tokens, so that it is kept"}]})");
  answer(chat_completions, service(), body);
  const ordered_json again = answer(chat_completions, service(), body);
  EXPECT_GE(again["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
}

TEST_F(Chat, SeveralChoices) {
  const ordered_json asked = with(hello(12), R"({"n": 3, "temperature": 1, "seed": 5})");
  const ordered_json body = answer(chat_completions, service(), asked);
  ASSERT_EQ(body["choices"].size(), 3u);
  std::set<std::string> texts;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    texts.insert(body["choices"][i]["message"]["content"].get<std::string>());
  }
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_EQ(body["usage"]["completion_tokens"], 36);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 13);

  const std::vector<ordered_json> chunks = streamed(chat_completions, service(), asked);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(body["choices"][i]["message"]["content"], content_of(chunks, i));
}

TEST_F(Chat, Logprobs) {
  const ordered_json body =
      answer(chat_completions, service(), with(hello(4), R"({"logprobs": true, "top_logprobs": 2})"));
  const ordered_json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u);
  for (const ordered_json& entry : content) {
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]) << "greedy";
    EXPECT_LE(entry["logprob"].get<double>(), 0);
  }
}

TEST_F(Chat, AForcedCall) {
  const char* const tools = R"({"tools": [{"type": "function", "function": {"name": "add", "parameters":
      {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}}}],
      "tool_choice": {"type": "function", "function": {"name": "add"}}, "ignore_eos": false})";
  const ordered_json body = answer(chat_completions, service(), with(hello(200), tools));
  const ordered_json& choice = body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << body;
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
  const ordered_json& call = choice["message"]["tool_calls"][0];
  EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(call["function"]["name"], "add");
  EXPECT_TRUE(ordered_json::parse(call["function"]["arguments"].get<std::string>())["a"].is_boolean());

  std::string arguments;
  for (const ordered_json& chunk : streamed(chat_completions, service(), with(hello(200), tools)))
    if (const auto calls = chunk["choices"][0]["delta"].find("tool_calls"); calls != chunk["choices"][0]["delta"].end())
      arguments += (*calls)[0]["function"]["arguments"].get<std::string>();
  EXPECT_EQ(call["function"]["arguments"], arguments);
}

TEST_F(Chat, JsonBySchema) {
  const ordered_json body = answer(chat_completions, service(), with(hello(300), R"({"ignore_eos": false,
      "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema":
          {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
           "additionalProperties": false}}}})"));
  const std::string text = body["choices"][0]["message"]["content"];
  EXPECT_TRUE(ordered_json::parse(text, nullptr, false)["ok"].is_boolean()) << text;
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
}

TEST_F(Chat, EachChoiceHasAConstraintOfItsOwn) {
  const ordered_json body =
      answer(chat_completions, service(),
             with(hello(40), R"({"n": 4, "temperature": 1, "regex": "(ab|cd){2}e", "ignore_eos": false})"));
  for (const ordered_json& choice : body["choices"]) {
    const std::string text = choice["message"]["content"];
    EXPECT_EQ(text.size(), 5u) << text;
    EXPECT_EQ(text.back(), 'e');
  }
}

TEST_F(Chat, ErrorsOfTheBody) {
  const auto expect = [&](const ordered_json& body, const std::string& param) {
    testing::expect_api_error([&] { chat_completions(testing::posted("/v1", body.dump()), service(), {}); }, 400,
                              param);
  };
  expect(ordered_json::object(), "messages");
  expect(with(hello(), R"({"lora_path": "x"})"), "lora_path");
  expect(with(hello(), R"({"regex": "("})"), "regex");
  expect(with(hello(), R"({"logit_bias": {"9999": 1}, "n": 2})"), "logit_bias");
}

TEST_F(Chat, AClientThatLeavesEndsAllChoices) {
  const auto exchange = testing::posted("/v1", with(hello(400), R"({"n": 3, "stream": true})").dump());
  chat_completions(exchange, service(), {});
  ASSERT_TRUE(exchange->wait_for_parts(2));
  exchange->leave();
  EXPECT_TRUE(tiny_.wait_until_idle());
}

TEST(ChatOfOthers, AbortedTextsEndAsSglangsDo) {
  TinyService stepped({.loop = false});
  const auto exchange = testing::posted("/v1", with(hello(400), R"({"rid": "mine"})").dump());
  chat_completions(exchange, stepped.service(), {});
  stepped.engine().step();
  EXPECT_EQ(stepped.service().abort("mine"), 1);
  stepped.engine().step();
  ASSERT_TRUE(exchange->ended());
  const ordered_json body = ordered_json::parse(exchange->body());
  EXPECT_EQ(body["id"], "mine");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "abort");
}

TEST(ChatOfOthers, WhenTheQueueIsFullNothingIsLeftBehind) {
  TinyService small(
      {.engine = {.max_total_tokens = 1024, .max_running_requests = 1, .max_queued_requests = 2}, .loop = false});
  const auto exchange = testing::posted("/v1", with(hello(), R"({"n": 4, "stream": true})").dump());
  chat_completions(exchange, small.service(), {});
  EXPECT_EQ(exchange->status(), 503) << exchange->body();
  EXPECT_FALSE(exchange->streams());
  for (int steps = 0; small.engine().step(); ++steps) ASSERT_LT(steps, 100);
  EXPECT_TRUE(small.wait_until_idle());
}

TEST(ChatOfOthers, WhoWaitedTooLongIsTold) {
  TinyService slow(
      {.change = [](ServiceOptions& options) { options.queue_time = std::chrono::milliseconds(1); }, .loop = false});
  const auto exchange = testing::posted("/v1", with(hello(), R"({"stream": true})").dump());
  chat_completions(exchange, slow.service(), {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int steps = 0; slow.engine().step(); ++steps) ASSERT_LT(steps, 100);
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 503) << exchange->body();
}

}  // namespace
}  // namespace quire::serve
