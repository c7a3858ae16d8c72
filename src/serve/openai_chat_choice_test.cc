#include "serve/openai_chat_choice.h"

#include <gtest/gtest.h>

#include "serve/event_stream.h"
#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

const End kStoppedByToken{EndReason::stop, testing::kEnd};

class ChatChoiceTest : public ::testing::Test {
 protected:
  ChatChoice choice(const ToolForm* form = nullptr, bool logprobs = false) {
    return ChatChoice(
        0, {.tokenizer = tokenizer_, .logprobs = logprobs, .new_call_id = [this] { return next_id(); }},
        form ? std::make_unique<ToolParser>(*form, std::vector<std::string>{"add", "now"}, 100) : nullptr);
  }
  ChatChoice reasoning_choice(bool stream_reasoning = true) {
    return ChatChoice(0,
                      {.tokenizer = tokenizer_,
                       .new_call_id = [this] { return next_id(); },
                       .reasoning = Reasoning::may_begin,
                       .stream_reasoning = stream_reasoning},
                      std::make_unique<ToolParser>(kHermesForm, std::vector<std::string>{"add", "now"}, 100));
  }
  static std::vector<std::string> deltas(const std::vector<ordered_json>& chunks) {
    std::vector<std::string> deltas;
    for (const ordered_json& chunk : chunks) deltas.push_back(chunk["choices"][0]["delta"].dump());
    return deltas;
  }
  std::vector<ordered_json> streamed(ChatChoice choice, std::vector<Progress> all) {
    const ChunkWriter chunks({"id-1", "chat.completion.chunk", "tiny", 7}, false);
    std::string stream;
    for (Progress& progress : all) choice.stream(progress, chunks, stream);
    return testing::events_of(stream.append(kDoneEvent));
  }
  ordered_json collected(ChatChoice choice, std::vector<Progress> all) {
    for (Progress& progress : all) choice.collect(progress);
    return ordered_json::parse(choice.json());
  }

 private:
  std::string next_id() { return "call_" + std::to_string(++ids_); }

  const text::Tokenizer tokenizer_{testing::tiny_vocabulary()};
  int ids_ = 0;
};

const std::vector<Progress> kHello = {{.text = "He"}, {}, {.text = "l\"lo\n"}, {.end = kStoppedByToken}};

TEST_F(ChatChoiceTest, Text) {
  const std::vector<ordered_json> chunks = streamed(choice(), kHello);
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[0], ordered_json::parse(R"({"id": "id-1", "object": "chat.completion.chunk", "created": 7,
      "model": "tiny", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                                    "finish_reason": null}]})"));
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], ordered_json::parse(R"({"content": "He"})"));
  EXPECT_EQ(chunks[2]["choices"][0]["delta"], ordered_json::parse(R"({"content": "l\"lo\n"})"));
  EXPECT_EQ(chunks[3]["choices"][0], ordered_json::parse(R"({"index": 0, "delta": {}, "logprobs": null,
      "finish_reason": "stop", "matched_stop": 257})"));

  EXPECT_EQ(collected(choice(), kHello), ordered_json::parse(R"({"index": 0,
      "message": {"role": "assistant", "content": "Hel\"lo\n", "refusal": null}, "logprobs": null,
      "finish_reason": "stop", "matched_stop": 257})"));
}

TEST_F(ChatChoiceTest, LogprobsAreNotLostWhereTextIsHeldBack) {
  const std::vector<Progress> all = {
      {.tokens = {{.token = 'a', .logprob = -1}}},
      {.text = "ab", .tokens = {{.token = 'b', .logprob = -2}}},
      {.tokens = {{.token = 'c', .logprob = -3}, {.token = testing::kEnd}}, .end = kStoppedByToken}};
  const std::vector<ordered_json> chunks = streamed(choice(nullptr, true), all);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_TRUE(chunks[0]["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(chunks[1]["choices"][0]["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(chunks[2]["choices"][0]["logprobs"]["content"].size(), 1u) << "the end is no part of the text";
  const ordered_json whole = collected(choice(nullptr, true), all);
  EXPECT_EQ(whole["logprobs"]["content"].size(), 3u);
  EXPECT_EQ(whole["logprobs"]["content"][2]["token"], "c");
}

const std::vector<Progress> kCalls = {
    {.text = "See: <tool_call>{\"name\": \"add\", \"argu"},
    {.text = "ments\": {\"a\""},
    {.text = ": \"\xC3\xB6\"}}</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"},
    {.end = kStoppedByToken}};

TEST_F(ChatChoiceTest, ToolCallsInAStream) {
  const std::vector<ordered_json> chunks = streamed(choice(&kHermesForm), kCalls);
  std::vector<ordered_json> deltas;
  for (const ordered_json& chunk : chunks) deltas.push_back(chunk["choices"][0]["delta"]);
  const std::vector<std::string> expected = {
      R"({"role":"assistant","content":""})",
      R"({"content":"See:"})",
      R"({"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"add","arguments":""}}]})",
      R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]})",
      "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\": \\\"\xC3\xB6\\\"}\"}}]}",
      R"({"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"now","arguments":""}}]})",
      R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})",
      "{}"};
  ASSERT_EQ(deltas.size(), expected.size());
  for (size_t i = 0; i < deltas.size(); ++i) EXPECT_EQ(deltas[i].dump(), expected[i]);
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ChatChoiceTest, ToolCallsInOnePiece) {
  const ordered_json whole = collected(choice(&kHermesForm), kCalls);
  EXPECT_EQ(
      whole["message"],
      ordered_json::parse(
          "{\"role\": \"assistant\", \"content\": \"See:\", \"refusal\": null,"
          "\"tool_calls\": [{\"id\": \"call_1\", \"type\": \"function\", \"function\": {\"name\": \"add\","
          "\"arguments\": \"{\\\"a\\\": \\\"\xC3\xB6\\\"}\"}},"
          "{\"id\": \"call_2\", \"type\": \"function\", \"function\": {\"name\": \"now\", \"arguments\": \"{}\"}}]}"));
  EXPECT_EQ(whole["finish_reason"], "tool_calls");
  const std::vector<Progress> only = {{.text = "{\"name\": \"now\", \"parameters\": {}}", .end = End{EndReason::stop}}};
  EXPECT_TRUE(collected(choice(&kLlama3Form), only)["message"]["content"].is_null());
}

TEST_F(ChatChoiceTest, ACallThatIsCutEndsByItsLength) {
  const std::vector<Progress> cut = {
      {.text = "{\"name\": \"add\", \"parameters\": {\"a\": 1", .end = End{EndReason::length}}};
  const ordered_json whole = collected(choice(&kLlama3Form), cut);
  EXPECT_EQ(whole["finish_reason"], "length");
  EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1");
}

const std::vector<Progress> kThought = {
    {.text = "<think>\nI may <tool_call>", .tokens = {{.token = 'a'}, {.token = 'b'}}},
    {.text = " add.\n"},
    {.text = "</think>\n\nSee: <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>"},
    {.end = kStoppedByToken}};

TEST_F(ChatChoiceTest, ReasoningIsSplitOffBeforeCallsAreLookedFor) {
  const std::vector<std::string> expected = {
      R"({"role":"assistant","content":""})",
      R"({"reasoning_content":"I may <tool_call>"})",
      R"({"reasoning_content":" add."})",
      R"({"content":"See:"})",
      R"({"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"now","arguments":""}}]})",
      R"({"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]})",
      "{}"};
  EXPECT_EQ(deltas(streamed(reasoning_choice(), kThought)), expected);
  EXPECT_EQ(collected(reasoning_choice(), kThought)["message"].dump(),
            R"({"role":"assistant","content":"See:","refusal":null,"reasoning_content":"I may <tool_call> add.",)"
            R"("tool_calls":[{"id":"call_2","type":"function","function":{"name":"now","arguments":"{}"}}]})");
}

TEST_F(ChatChoiceTest, ReasoningMayComeInOnePiece) {
  const std::vector<std::string> all = deltas(streamed(reasoning_choice(false), kThought));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[1], R"({"reasoning_content":"I may <tool_call> add."})");
  EXPECT_EQ(all[2], R"({"content":"See:"})");
  const std::vector<Progress> cut = {{.text = "<think>a"}, {.text = " b"}, {.end = End{EndReason::length}}};
  EXPECT_EQ(deltas(streamed(reasoning_choice(false), cut))[1], R"({"reasoning_content":"a b"})");
}

TEST_F(ChatChoiceTest, ReasoningIsCountedWhereItsEndIsAToken) {
  text::Vocabulary vocabulary = testing::tiny_vocabulary();
  const int32_t end = vocabulary.tokens.add("</think>");
  vocabulary.types.push_back(text::TokenType::user_defined);
  vocabulary.added.push_back({.id = end, .special = false});
  vocabulary.mergeable.push_back(false);
  const text::Tokenizer tokenizer(std::move(vocabulary));
  ASSERT_EQ(tokenizer.find("</think>"), end);
  const auto counted = [&](const std::vector<Progress>& all) {
    ChatChoice choice(0, {.tokenizer = tokenizer, .new_call_id = {}, .reasoning = Reasoning::may_begin}, nullptr);
    for (Progress progress : all) choice.collect(progress);
    return choice.reasoning_tokens();
  };
  EXPECT_EQ(counted({{.text = "<think>a", .tokens = {{.token = 'a'}, {.token = 'b'}}},
                     {.text = "</think>c", .tokens = {{.token = end}, {.token = 'c'}}},
                     {.tokens = {{.token = 'd'}}, .end = kStoppedByToken}}),
            3);
  EXPECT_EQ(counted({{.text = "abc", .tokens = {{.token = 'a'}, {.token = end}}, .end = kStoppedByToken}}), 0);
}

TEST_F(ChatChoiceTest, AnAnswerWithoutReasoningIsAllContent) {
  EXPECT_EQ(collected(reasoning_choice(), kHello)["message"], collected(choice(&kHermesForm), kHello)["message"]);
}

TEST_F(ChatChoiceTest, TextHeldBackByTheParserComesAtTheEnd) {
  const std::vector<Progress> all = {{.text = "a <tool_"}, {.end = End{EndReason::cancelled}}};
  const std::vector<ordered_json> chunks = streamed(choice(&kHermesForm), all);
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "a");
  EXPECT_EQ(chunks[2]["choices"][0]["delta"]["content"], " <tool_");
  EXPECT_EQ(chunks[3]["choices"][0]["finish_reason"], "abort");
}

}  // namespace
}  // namespace quire::serve
