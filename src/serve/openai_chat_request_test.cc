#include "serve/openai_chat_request.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "base/testing/expect_refused.h"
#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;

class ChatRequest : public ::testing::Test {
 protected:
  ChatBody read(const std::string& members) {
    std::string body = R"({"messages": [{"role": "user", "content": "hi"}])";
    if (!members.empty()) body += ", " + members;
    return read_chat(ordered_json::parse(body + "}"), strict_ ? strict_->service() : tiny_.service(), {.salt = ""});
  }
  std::string ignored(const std::string& members) { return read(members).settings.ignored; }
  void become_strict() {
    strict_.emplace(testing::TinyService::Options{
        .change = [](ServiceOptions& options) { options.strict_fields = true; }, .loop = false});
  }
  void expect_refusal(const std::string& members, const std::string& param, const std::string& part = {},
                      int status = 400) {
    SCOPED_TRACE(members);
    expect_api_error([&] { read(members); }, status, param, part);
  }
  testing::TinyService tiny_{{.loop = false}};
  std::optional<testing::TinyService> strict_;
};

const char* const kTools = R"("tools": [{"type": "function", "function": {"name": "add"}}])";

TEST_F(ChatRequest, Defaults) {
  const ChatBody call = read("");
  EXPECT_EQ(call.settings.request.max_new_tokens, -1);
  EXPECT_EQ(call.settings.request.top_logprobs, -1);
  EXPECT_EQ(call.settings.choices, 1);
  EXPECT_FALSE(call.settings.stream);
  EXPECT_TRUE(call.settings.text.drop_first_space);
  EXPECT_EQ(call.tool_form, nullptr);
  EXPECT_EQ(call.settings.request.prompt.back(), testing::kAssistant);
}

TEST_F(ChatRequest, Values) {
  const ChatBody call = read(R"("model": "tiny", "n": 3, "stream": true, "stream_options": {"include_usage": true},
      "stop": ["a", "b"], "logprobs": true, "top_logprobs": 4, "max_tokens": 5, "max_completion_tokens": 7,
      "rid": "mine", "priority": -2, "cache_salt": "s", "extra_key": "k", "no_stop_trim": true,
      "skip_special_tokens": false, "temperature": 0.5, "seed": 3, "speculative": false)");
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
  EXPECT_FALSE(request.speculative);
  EXPECT_FALSE(request.salt.empty());
  EXPECT_EQ(request.sampling.seed, 3u);
}

TEST_F(ChatRequest, WhatTheRouterSendsIsAccepted) {
  const ChatBody call =
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
  expect_refusal("\"functions\": []", "functions");
  expect_refusal("\"function_call\": \"auto\"", "function_call");
  expect_refusal("\"return_hidden_states\": true", "return_hidden_states");
  expect_refusal("\"lora_path\": \"x\"", "lora_path");
  for (const char* name : {"lora", "logits_processors", "bad_words", "allowed_token_ids", "documents"})
    expect_refusal("\"" + std::string(name) + "\": [1]", name);
  for (const char* name : {"mirostat", "typical_p", "xtc_probability", "dry_multiplier", "length_penalty"})
    expect_refusal("\"" + std::string(name) + "\": 0.5", name);
  expect_refusal("\"use_beam_search\": true", "use_beam_search");
  expect_refusal("\"chat_template\": \"x\"", "chat_template");
  expect_refusal("\"n\": 0", "n");
  expect_refusal("\"n\": 65", "n");
  expect_refusal("\"max_tokens\": 0", "max_tokens");
  expect_refusal("\"max_tokens\": -2", "max_tokens");
  expect_refusal("\"top_logprobs\": 3", "top_logprobs");
  expect_refusal("\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs");
  expect_refusal("\"logprobs\": 3", "logprobs");
  expect_refusal("\"stop\": \"\"", "stop");
  expect_refusal("\"stop\": 3", "stop");
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

TEST_F(ChatRequest, WhatHasNoEffectIsAcceptedAndNamed) {
  EXPECT_EQ(ignored("\"user\": \"u\", \"frobnicate\": null, \"mirostat\": 0, \"typical_p\": 1.0, \"bad_words\": []"),
            "");
  EXPECT_EQ(ignored(R"("store": true, "prediction": {"type": "content"}, "verbosity": "low", "keep_alive": "5m",
      "stream_options": {"include_usage": true}, "cache_prompt": true, "return_token_ids": true, "frobnicate": {})"),
            "stream_options, store, verbosity, prediction, keep_alive, cache_prompt, return_token_ids, frobnicate");
  EXPECT_EQ(ignored(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"),
            "stream_options.continuous_usage_stats");
  EXPECT_EQ(ignored(R"("tools": [{"type": "function", "cache_control": {},
                                  "function": {"name": "add", "x-google": 1}}])"),
            "tools[].cache_control, tools[].function.x-google");
}

TEST_F(ChatRequest, StrictlyWhatIsNotKnownIsRefused) {
  become_strict();
  for (const char* name : {"frobnicate", "keep_alive", "store", "prediction", "cache_prompt"})
    expect_refusal("\"" + std::string(name) + "\": true", name);
  expect_refusal("\"verbosity\": \"low\"", "verbosity");
  expect_refusal("\"stream_options\": {\"include_usage\": true}", "stream_options");
  expect_refusal("\"stream\": true, \"stream_options\": {\"x\": 1}", "stream_options.x");
  expect_refusal(R"("tools": [{"type": "function", "function": {"name": "add", "x": 1}}])", "tools[0].function.x");
  EXPECT_EQ(ignored(R"("store": false, "verbosity": "medium", "user": "u")"), "");
}

TEST_F(ChatRequest, WhatASchemaDoesNotEnforceIsNamedOrRefused) {
  const auto format = [](const char* strict) {
    return R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": )" +
           std::string(strict) +
           R"(, "schema": {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}}}}})";
  };
  for (const char* strict : {"null", "false"})
    EXPECT_EQ(ignored(format(strict)), "response_format#/properties/tags/uniqueItems");
  EXPECT_EQ(ignored(kTools + std::string(R"(, "tool_choice": "required")")), "");
  const ChatBody call = read(format("true"));
  std::vector<JobSpec> jobs;
  const auto add = [&] { add_jobs(jobs, call.settings, call.settings.request, "rid"); };
  expect_api_error(add, 400, "response_format", "uniqueItems");
  expect_refusal(R"("guided_json": {"type": "strin"})", "guided_json", "strin");
}

TEST_F(ChatRequest, LengthsHaveManyNames) {
  const auto limit = [&](const char* members) { return read(members).settings.request.max_new_tokens; };
  EXPECT_EQ(limit("\"max_tokens\": null"), -1);
  EXPECT_EQ(limit("\"max_tokens\": -1"), -1);
  EXPECT_EQ(limit("\"max_completion_tokens\": null, \"max_tokens\": 4"), 4);
  EXPECT_EQ(limit("\"n_predict\": 5"), 5);
  EXPECT_EQ(limit("\"max_new_tokens\": 6, \"n_predict\": -1"), 6);
}

TEST_F(ChatRequest, OthersNamesAreUnderstood) {
  EXPECT_TRUE(read("\"include_stop_str_in_output\": true").settings.text.keep_stop);
  EXPECT_FALSE(read("\"include_stop_str_in_output\": true, \"no_stop_trim\": false").settings.text.keep_stop);
  EXPECT_EQ(read("\"repeat_penalty\": 1.5").settings.request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(read("\"repeat_penalty\": 1.5, \"repetition_penalty\": 2").settings.request.sampling.repetition_penalty, 2);
  expect_refusal("\"repeat_penalty\": 0", "repeat_penalty");
  expect_refusal("\"enable_thinking\": 1", "enable_thinking");
  EXPECT_EQ(ignored("\"enable_thinking\": false, \"min_tokens\": 1, \"stop_token_ids\": [1], \"ignore_eos\": true"),
            "");
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
  const ChatBody may = read(kTools);
  EXPECT_EQ(may.tool_form, &kHermesForm);
  EXPECT_EQ(may.tool_names, std::vector<std::string>{"add"});
  EXPECT_EQ(may.most_calls, std::numeric_limits<int>::max());
  EXPECT_FALSE(may.settings.constraint.has_value());

  const ChatBody must = read(kTools + std::string(", \"tool_choice\": \"required\", \"parallel_tool_calls\": false"));
  EXPECT_EQ(must.tool_form, &kArrayForm);
  EXPECT_EQ(must.most_calls, 1);
  EXPECT_TRUE(must.settings.constraint.has_value());

  const ChatBody none = read(kTools + std::string(", \"tool_choice\": \"none\""));
  EXPECT_EQ(none.tool_form, nullptr);
  const ChatBody constrained = read(kTools + std::string(", \"response_format\": {\"type\": \"json_object\"}"));
  EXPECT_EQ(constrained.tool_form, nullptr) << "the answer is JSON, not a call";
}

class ReasoningRequest : public ::testing::Test {
 protected:
  // A template that begins the reasoning unless it is told not to, and one that leaves it to the model.
  static constexpr const char* kBegins =
      "{{ messages[0].content }}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
      "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";
  static constexpr const char* kAlwaysBegins = "{{ messages[0].content }}<|assistant|>{{ '<think>\\n' }}";
  static constexpr const char* kLeaves = "{{ messages[0].content }}<|assistant|>{# <think> #}";

  void serve(const std::string& chat_template, const std::string& parser = "") {
    tiny_.emplace(testing::TinyService::Options{.change =
                                                    [&](ServiceOptions& options) {
                                                      options.chat_template = chat_template;
                                                      options.reasoning_parser = parser;
                                                    },
                                                .loop = false});
  }
  ChatBody read(const std::string& members = "") {
    const std::string body = R"({"messages": [{"role": "user", "content": "hi"}])" + members + "}";
    return read_chat(ordered_json::parse(body), tiny_->service(), {});
  }
  std::string prompt(const ChatBody& call) { return tiny_->tokenizer().decode(call.settings.request.prompt, false); }

  std::optional<testing::TinyService> tiny_;
};

TEST_F(ReasoningRequest, BeginsAsThePromptEnds) {
  serve(kBegins);
  EXPECT_EQ(read().reasoning, Reasoning::begun);
  EXPECT_TRUE(read().stream_reasoning);
  EXPECT_FALSE(read(", \"stream_reasoning\": false").stream_reasoning);
  EXPECT_EQ(read(", \"enable_thinking\": false").reasoning, Reasoning::none);
  EXPECT_EQ(read(", \"chat_template_kwargs\": {\"enable_thinking\": false}").reasoning, Reasoning::none);
  EXPECT_EQ(read(", \"separate_reasoning\": false").reasoning, Reasoning::none);
  serve(kLeaves);
  EXPECT_EQ(read().reasoning, Reasoning::may_begin);
  serve(kLeaves, "deepseek-r1");
  EXPECT_EQ(read().reasoning, Reasoning::begun);
  serve(kBegins, "none");
  EXPECT_EQ(read().reasoning, Reasoning::none);
}

TEST_F(ReasoningRequest, AConstrainedAnswerHasNone) {
  serve(kBegins);
  const ChatBody constrained = read(", \"response_format\": {\"type\": \"json_object\"}");
  EXPECT_EQ(constrained.reasoning, Reasoning::none);
  EXPECT_EQ(prompt(constrained), "hi<|assistant|><think>\n\n</think>\n\n");
  serve(kAlwaysBegins);
  EXPECT_EQ(prompt(read(", \"regex\": \"a\"")), "hi<|assistant|><think>\n\n</think>\n\n");
  EXPECT_EQ(prompt(read(", \"regex\": \"a\", \"separate_reasoning\": false")),
            "hi<|assistant|><think>\n\n</think>\n\n");
  EXPECT_EQ(prompt(read()), "hi<|assistant|><think>\n");
}

TEST_F(ChatRequest, TheParserIsTheOperators) {
  testing::TinyService mistral(
      {.change = [](ServiceOptions& options) { options.tool_call_parser = "mistral"; }, .loop = false});
  const ordered_json body =
      ordered_json::parse(std::string(R"({"messages": [{"role": "user", "content": "hi"}], )") + kTools + "}");
  const ChatBody call = read_chat(body, mistral.service(), {});
  EXPECT_EQ(call.tool_form, &kMistralForm);
  EXPECT_TRUE(call.short_call_ids);
}

}  // namespace
}  // namespace quire::serve
