#include "serve/openai_chat_request.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/expect_refused.h"
#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;

class ChatRequest : public ::testing::Test {
 protected:
  ChatCall read(const std::string& members) {
    std::string body = R"({"messages": [{"role": "user", "content": "hi"}])";
    if (!members.empty()) body += ", " + members;
    return read_chat(ordered_json::parse(body + "}"), tiny_.service(), {.salt = ""});
  }
  void expect_refusal(const std::string& members, const std::string& param, const std::string& part = {},
                      int status = 400) {
    SCOPED_TRACE(members);
    expect_api_error([&] { read(members); }, status, param, part);
  }
  testing::TinyService tiny_{{.loop = false}};
};

const char* const kTools = R"("tools": [{"type": "function", "function": {"name": "add"}}])";

TEST_F(ChatRequest, Defaults) {
  const ChatCall call = read("");
  EXPECT_EQ(call.settings.request.max_new_tokens, -1);
  EXPECT_EQ(call.settings.request.top_logprobs, -1);
  EXPECT_EQ(call.settings.choices, 1);
  EXPECT_FALSE(call.settings.stream);
  EXPECT_TRUE(call.settings.text.drop_first_space);
  EXPECT_EQ(call.tool_form, nullptr);
  EXPECT_EQ(call.settings.request.prompt.back(), testing::kAssistant);
}

TEST_F(ChatRequest, Values) {
  const ChatCall call = read(R"("model": "tiny", "n": 3, "stream": true, "stream_options": {"include_usage": true},
      "stop": ["a", "b"], "logprobs": true, "top_logprobs": 4, "max_tokens": 5, "max_completion_tokens": 7,
      "rid": "mine", "priority": -2, "cache_salt": "s", "extra_key": "k", "no_stop_trim": true,
      "skip_special_tokens": false, "temperature": 0.5, "seed": 3)");
  EXPECT_EQ(call.settings.choices, 3);
  EXPECT_TRUE(call.settings.stream && call.settings.stream_usage);
  EXPECT_EQ(call.settings.text.stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(call.settings.text.keep_stop);
  EXPECT_FALSE(call.settings.text.skip_special);
  EXPECT_EQ(call.settings.rid, "mine");
  const engine::Request& request = call.settings.request;
  EXPECT_EQ(request.top_logprobs, 4);
  EXPECT_EQ(request.max_new_tokens, 7);
  EXPECT_EQ(request.priority, -2);
  EXPECT_FALSE(request.salt.empty());
  EXPECT_EQ(request.sampling.seed, 3u);
}

TEST_F(ChatRequest, WhatTheRouterSendsIsAccepted) {
  const ChatCall call =
      read(R"("model": "unknown", "max_completion_tokens": 8, "logprobs": false, "no_stop_trim": false,
      "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true,
      "stream_reasoning": true, "return_hidden_states": false, "stream": true)");
  EXPECT_EQ(call.settings.request.max_new_tokens, 8);
}

TEST_F(ChatRequest, HarmlessFieldsAreAccepted) {
  EXPECT_NO_THROW(read(R"("user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "x",
      "prompt_cache_key": "y", "store": false, "modalities": ["text"], "verbosity": "medium",
      "parallel_tool_calls": true, "reasoning_effort": "low", "response_format": {"type": "text"}, "top_k": -1,
      "min_p": 0.1, "tools": null,
      "repetition_penalty": 1.1, "min_tokens": 1, "stop_token_ids": [3], "audio": null, "functions": null,
      "model": "/models/tiny", "logit_bias": {"3": -100}, "chat_template_kwargs": {"enable_thinking": false})"));
}

TEST_F(ChatRequest, WhatIsRefusedByName) {
  expect_refusal("\"model\": 4", "model");
  expect_refusal("\"audio\": {\"voice\": \"x\"}", "audio");
  expect_refusal("\"modalities\": [\"text\", \"audio\"]", "modalities");
  expect_refusal("\"web_search_options\": {}", "web_search_options");
  expect_refusal("\"prediction\": {}", "prediction");
  expect_refusal("\"functions\": []", "functions");
  expect_refusal("\"function_call\": \"auto\"", "function_call");
  expect_refusal("\"store\": true", "store");
  expect_refusal("\"verbosity\": \"low\"", "verbosity");
  expect_refusal("\"return_hidden_states\": true", "return_hidden_states");
  expect_refusal("\"lora_path\": \"x\"", "lora_path");
  expect_refusal("\"frobnicate\": 1", "frobnicate");
  expect_refusal("\"n\": 0", "n");
  expect_refusal("\"n\": 65", "n");
  expect_refusal("\"max_tokens\": 0", "max_tokens");
  expect_refusal("\"top_logprobs\": 3", "top_logprobs");
  expect_refusal("\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs");
  expect_refusal("\"logprobs\": 3", "logprobs");
  expect_refusal("\"stop\": \"\"", "stop");
  expect_refusal("\"stop\": 3", "stop");
  expect_refusal("\"stream_options\": {\"include_usage\": true}", "stream_options");
  expect_refusal("\"stream\": true, \"stream_options\": {\"x\": 1}", "stream_options.x");
  expect_refusal("\"response_format\": {\"type\": \"xml\"}", "response_format.type");
  expect_refusal("\"response_format\": {\"type\": \"json_schema\"}", "response_format.json_schema");
  expect_refusal("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\"}}",
                 "response_format.json_schema.schema");
  expect_refusal("\"response_format\": {\"type\": \"json_object\"}, \"regex\": \"a\"", "regex");
  expect_refusal("\"regex\": \"a\", \"ebnf\": \"root ::= \\\"a\\\"\"", "ebnf");
  expect_refusal("\"chat_template_kwargs\": 3", "chat_template_kwargs");
  expect_refusal("\"chat_template_kwargs\": {\"messages\": []}", "chat_template_kwargs.messages");
  expect_refusal("\"chat_template_kwargs\": {\"a\": \"" + std::string(17000, 'x') + "\"}", "chat_template_kwargs");
  expect_refusal(kTools + std::string(", \"tool_choice\": \"required\", \"regex\": \"a\""), "regex");
}

TEST_F(ChatRequest, APromptThatIsTooLong) {
  const auto read_long = [&] {
    read_chat({{"messages", {{{"role", "user"}, {"content", std::string(600, 'a')}}}}}, tiny_.service(), {});
  };
  expect_api_error(read_long, 400, "messages", "512");
  const ordered_json huge = {{"messages", {{{"role", "user"}, {"content", std::string(1 << 20, 'a')}}}}};
  expect_api_error([&] { read_chat(huge, tiny_.service(), {}); }, 400, "messages", "more than");
  try {
    read_long();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_NE(std::string(error.what()).find("608"), std::string::npos) << error.what();
  }
}

TEST_F(ChatRequest, Tools) {
  const ChatCall may = read(kTools);
  EXPECT_EQ(may.tool_form, &kHermesForm);
  EXPECT_EQ(may.tool_names, std::vector<std::string>{"add"});
  EXPECT_EQ(may.most_calls, std::numeric_limits<int>::max());
  EXPECT_FALSE(may.settings.constraint.has_value());

  const ChatCall must = read(kTools + std::string(", \"tool_choice\": \"required\", \"parallel_tool_calls\": false"));
  EXPECT_EQ(must.tool_form, &kArrayForm);
  EXPECT_EQ(must.most_calls, 1);
  EXPECT_TRUE(must.settings.constraint.has_value());

  const ChatCall none = read(kTools + std::string(", \"tool_choice\": \"none\""));
  EXPECT_EQ(none.tool_form, nullptr);
  const ChatCall json = read(kTools + std::string(", \"response_format\": {\"type\": \"json_object\"}"));
  EXPECT_EQ(json.tool_form, nullptr) << "the answer is JSON, not a call";
}

TEST_F(ChatRequest, TheParserIsTheOperators) {
  testing::TinyService mistral(
      {.change = [](ServiceOptions& options) { options.tool_call_parser = "mistral"; }, .loop = false});
  const ordered_json body =
      ordered_json::parse(std::string(R"({"messages": [{"role": "user", "content": "hi"}], )") + kTools + "}");
  const ChatCall call = read_chat(body, mistral.service(), {});
  EXPECT_EQ(call.tool_form, &kMistralForm);
  EXPECT_TRUE(call.short_call_ids);
}

}  // namespace
}  // namespace quire::serve
