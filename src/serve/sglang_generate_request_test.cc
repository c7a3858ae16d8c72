#include "serve/sglang_generate_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::TinyService;
using Tokens = std::vector<int32_t>;

class GenerateRequest : public ::testing::Test {
 protected:
  GenerateBody read(const std::string& body, const Caller& caller = {}) {
    return read_generate(ordered_json::parse(body), tiny_.service(), caller);
  }
  const JobSpec& only(const std::string& body) {
    call_ = read(body);
    EXPECT_EQ(call_.texts.size(), 1u);
    return call_.texts[0].job;
  }
  // The parameter that a 400 blames.
  std::string blamed(const std::string& body) {
    try {
      read(body);
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400) << body;
      return error.param;
    }
    return "nothing was refused";
  }

  TinyService tiny_{{.loop = false}};
  GenerateBody call_;
};

TEST_F(GenerateRequest, HasSglangsDefaults) {
  const JobSpec& job = only(R"({"text": "hi"})");
  EXPECT_EQ(job.request.prompt, (Tokens{testing::kBegin, 'h', 'i'}));
  EXPECT_EQ(job.request.max_new_tokens, 128);
  EXPECT_EQ(job.request.sampling.temperature, 1);
  EXPECT_EQ(job.request.stop_ids, Tokens{testing::kEnd});
  EXPECT_EQ(job.request.top_logprobs, -1);
  EXPECT_EQ(job.request.priority, 0);
  EXPECT_TRUE(job.request.speculative);
  EXPECT_EQ(job.request.salt, "");
  EXPECT_FALSE(job.rid.empty());
  EXPECT_TRUE(job.text.skip_special);
  EXPECT_FALSE(job.text.keep_stop);
  EXPECT_FALSE(job.text.drop_first_space);
  EXPECT_FALSE(call_.is_list);
  EXPECT_FALSE(call_.stream);
}

TEST_F(GenerateRequest, SpecialTokensInATextAreThoseTokens) {
  EXPECT_EQ(only(R"({"text": "a<|assistant|>"})").request.prompt, (Tokens{testing::kBegin, 'a', testing::kAssistant}));
}

TEST_F(GenerateRequest, TokensAreTakenAsTheyAre) {
  EXPECT_EQ(only(R"({"input_ids": [5, 6]})").request.prompt, (Tokens{5, 6}));
  EXPECT_FALSE(call_.is_list);
}

TEST_F(GenerateRequest, SamplingParametersReachTheJob) {
  const JobSpec& job = only(R"({"text": "hi", "priority": -3, "speculative": false, "rid": "mine", "sampling_params": {
      "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "frequency_penalty": 1, "presence_penalty": -1,
      "repetition_penalty": 1.5, "max_new_tokens": 9, "min_new_tokens": 2, "stop": ["x", "y"], "stop_token_ids": [3],
      "ignore_eos": true, "skip_special_tokens": false, "spaces_between_special_tokens": true, "no_stop_trim": true,
      "n": 1, "logit_bias": {"4": -5}, "sampling_seed": 11, "stream_interval": 1, "json_schema": null,
      "custom_params": null}})");
  const ops::SamplingParams& sampling = job.request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.frequency_penalty, 1);
  EXPECT_EQ(sampling.presence_penalty, -1);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.seed, 11u);
  EXPECT_EQ(sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{4, -5.0f}}));
  EXPECT_EQ(job.request.max_new_tokens, 9);
  EXPECT_EQ(job.request.min_new_tokens, 2);
  EXPECT_EQ(job.request.stop_ids, Tokens{3});
  EXPECT_EQ(job.request.priority, -3);
  EXPECT_FALSE(job.request.speculative);
  EXPECT_EQ(job.text.stops, (std::vector<std::string>{"x", "y"}));
  EXPECT_FALSE(job.text.skip_special);
  EXPECT_TRUE(job.text.keep_stop);
  EXPECT_EQ(job.rid, "mine");
}

TEST_F(GenerateRequest, NullNewTokensMeansToTheEndOfTheContext) {
  EXPECT_EQ(only(R"({"text": "a", "sampling_params": {"max_new_tokens": null}})").request.max_new_tokens, -1);
}

TEST_F(GenerateRequest, ListsBecomeOneJobEach) {
  const GenerateBody call = read(R"({"text": ["a", "bc"], "stream": true, "rid": ["x", "y"], "sampling_params":
      [{"max_new_tokens": 3}, {"max_new_tokens": 4, "stop": "s"}], "return_logprob": [false, true],
      "top_logprobs_num": [0, 2], "logprob_start_len": [0, 1], "token_ids_logprob": [[1], [2, 3]],
      "extra_key": ["k", "l"]})");
  ASSERT_EQ(call.texts.size(), 2u);
  EXPECT_TRUE(call.is_list && call.stream);
  const auto& [first, second] = std::tie(call.texts[0], call.texts[1]);
  EXPECT_EQ(first.job.rid, "x");
  EXPECT_EQ(first.job.request.max_new_tokens, 3);
  EXPECT_EQ(first.job.request.top_logprobs, -1);
  EXPECT_FALSE(first.logprobs.wanted);
  EXPECT_EQ(second.job.rid, "y");
  EXPECT_EQ(second.job.text.stops, std::vector<std::string>{"s"});
  EXPECT_EQ(second.job.request.top_logprobs, 2);
  EXPECT_EQ(second.job.request.prompt_logprobs_from, 1);
  EXPECT_EQ(second.job.request.logprob_ids, (Tokens{2, 3}));
  EXPECT_TRUE(second.logprobs.wanted && second.logprobs.top && second.logprobs.ids);
  EXPECT_NE(first.job.request.salt, second.job.request.salt);
}

TEST_F(GenerateRequest, ListsOfTokensBecomeOneJobEach) {
  const GenerateBody call = read(R"({"input_ids": [[1, 2], [3]], "rid": "r", "token_ids_logprob": [8],
      "return_logprob": true})");
  ASSERT_EQ(call.texts.size(), 2u);
  EXPECT_EQ(call.texts[1].job.request.prompt, Tokens{3});
  EXPECT_EQ(call.texts[0].job.rid, "r_0");
  EXPECT_EQ(call.texts[1].job.rid, "r_1");
  for (const GenerateText& text : call.texts) EXPECT_EQ(text.job.request.logprob_ids, Tokens{8});
}

TEST_F(GenerateRequest, SeveralChoicesDifferInSeedAndName) {
  const GenerateBody call =
      read(R"({"text": ["a", "b"], "rid": ["x", "y"], "sampling_params": {"n": 3, "seed": 5, "regex": "[ab]+"}})");
  ASSERT_EQ(call.texts.size(), 6u);
  EXPECT_TRUE(call.is_list);
  std::set<std::string> names;
  std::set<const engine::TokenMask*> masks;
  for (size_t i = 0; i < 6; ++i) {
    const JobSpec& job = call.texts[i].job;
    EXPECT_EQ(job.request.prompt.back(), i < 3 ? 'a' : 'b');
    EXPECT_EQ(job.request.sampling.seed, 5 + i % 3);
    EXPECT_TRUE(job.rid.starts_with(i < 3 ? "x" : "y"));
    names.insert(job.rid);
    masks.insert(job.request.mask.get());
  }
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(masks.size(), 6u);
  EXPECT_FALSE(masks.contains(nullptr));
}

TEST_F(GenerateRequest, OneTextWithSeveralChoicesIsAList) {
  const GenerateBody call = read(R"({"text": "a", "rid": "x", "sampling_params": {"n": 2}})");
  EXPECT_TRUE(call.is_list);
  ASSERT_EQ(call.texts.size(), 2u);
  EXPECT_EQ(call.texts[0].job.rid, "x_0");
  EXPECT_EQ(call.texts[1].job.rid, "x_1");
}

TEST_F(GenerateRequest, LogprobsOfThePromptBeginWhereTheCallerSays) {
  const auto from = [&](const char* start) {
    return only(cat(R"({"text": "abc", "return_logprob": true, "logprob_start_len": )", start, "}"))
        .request.prompt_logprobs_from;
  };
  EXPECT_EQ(from("-1"), -1);
  EXPECT_EQ(from("0"), 0);
  EXPECT_EQ(from("3"), 3);
  EXPECT_EQ(from("4"), -1);  // the prompt's end: none
  EXPECT_EQ(blamed(R"({"text": "abc", "return_logprob": true, "logprob_start_len": 5})"), "logprob_start_len");
  EXPECT_EQ(only(R"({"text": "abc", "return_logprob": true})").request.top_logprobs, 0);
}

TEST_F(GenerateRequest, AStreamRepeatsOnlySoManyLogprobs) {
  const auto call = [](int tokens, bool stream) {
    return ordered_json{{"text", "abc"},
                        {"stream", stream},
                        {"return_logprob", true},
                        {"top_logprobs_num", 127},
                        {"token_ids_logprob", std::vector<int>(384, 1)},
                        {"sampling_params", {{"max_new_tokens", tokens}}}}
        .dump();
  };
  const auto most = static_cast<int>(kMostRepeatedLogprobs / 512);
  EXPECT_EQ(blamed(call(most + 1, true)), "return_logprob");
  EXPECT_NO_THROW(only(call(most, true)));
  EXPECT_NO_THROW(only(call(most + 1, false)));
}

TEST_F(GenerateRequest, SaltsSeparateAndNeverJoin) {
  const auto salt = [&](const char* field, const Caller& caller) {
    return read(cat(R"({"text": "a", ")", field, R"(": "s"})"), caller).texts[0].job.request.salt;
  };
  EXPECT_EQ(salt("cache_salt", {}), salt("extra_key", {}));
  EXPECT_NE(salt("cache_salt", {}), salt("cache_salt", {.salt = "operator"}));
  EXPECT_EQ(blamed(R"({"text": "a", "cache_salt": "s", "extra_key": "t"})"), "extra_key");
}

TEST_F(GenerateRequest, TakesWhatTheRouterAlwaysSends) {
  only(R"({"text": "a", "model": null, "return_text_in_logprobs": false, "log_metrics": true,
      "return_hidden_states": false, "background": false, "no_logs": false, "return_bytes": false,
      "return_entropy": false, "return_logprob": false, "logprob_start_len": -1, "top_logprobs_num": 0,
      "token_ids_logprob": null, "stream": false, "rid": null, "lora_path": null, "priority": null, "extra_key": null,
      "data_parallel_rank": 0, "bootstrap_host": null, "bootstrap_port": null, "bootstrap_room": null,
      "sampling_params": null})");
}

TEST_F(GenerateRequest, NamesWhatItRefuses) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "text"},
      {R"({"text": "a", "input_ids": [1]})", "text"},
      {R"({"text": []})", "text"},
      {R"({"text": [1]})", "text[0]"},
      {R"({"input_ids": ["a"]})", "input_ids[0]"},
      {R"({"input_ids": [[1], [-1]]})", "input_ids[1][0]"},
      {R"({"input_ids": [[1], 2]})", "input_ids[1]"},
      {R"({"text": "a", "sampling_params": 3})", "sampling_params"},
      {R"({"text": "a", "sampling_params": [{}, {}]})", "sampling_params"},
      {R"({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]})", "sampling_params.n"},
      {R"({"text": ["a", "b"], "sampling_params": {"n": 33}})", "sampling_params.n"},
      {R"({"text": "a", "sampling_params": {"n": 0}})", "sampling_params.n"},
      {R"({"text": "a", "sampling_params": {"temperature": -1}})", "sampling_params.temperature"},
      {R"({"text": "a", "sampling_params": {"max_new_tokens": -1}})", "sampling_params.max_new_tokens"},
      {R"({"text": "a", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}})",
       "sampling_params.min_new_tokens"},
      {R"({"text": "a", "sampling_params": {"stop_regex": "x"}})", "sampling_params.stop_regex"},
      {R"({"text": "a", "sampling_params": {"structural_tag": "x"}})", "sampling_params.structural_tag"},
      {R"({"text": "a", "sampling_params": {"custom_params": {}}})", "sampling_params.custom_params"},
      {R"({"text": "a", "sampling_params": {"spaces_between_special_tokens": false}})",
       "sampling_params.spaces_between_special_tokens"},
      {R"({"text": "a", "sampling_params": {"regex": "a", "ebnf": "root ::= \"a\""}})", "sampling_params.ebnf"},
      {R"({"text": "a", "rid": ""})", "rid"},
      {R"({"text": ["a", "b"], "rid": ["x"]})", "rid"},
      {R"({"text": "a", "lora_path": "x"})", "lora_path"},
      {R"({"text": "a", "bootstrap_host": "x"})", "bootstrap_host"},
      {R"({"text": "a", "image_data": "x"})", "image_data"},
      {R"({"text": "a", "return_hidden_states": true})", "return_hidden_states"},
      {R"({"text": "a", "top_logprobs_num": 129})", "top_logprobs_num"},
      {R"({"text": ["a", "b"], "return_logprob": [true]})", "return_logprob"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(blamed(body), param) << body;
}

TEST_F(GenerateRequest, WhatIsNotKnownIsIgnoredByName) {
  EXPECT_EQ(read(R"({"text": "a", "unheard": null, "sampling_params": {"unheard": null}})").ignored, "");
  EXPECT_EQ(read(R"({"text": ["a", "b"], "unheard": 1})").ignored, "unheard");
  EXPECT_EQ(blamed(R"({"text": "a", "sampling_params": {"topk": 1}})"), "sampling_params.topk");
  constexpr const char* kUnique = R"({"text": "a", "sampling_params": {"json_schema": {"uniqueItems": true}}})";
  EXPECT_EQ(read(kUnique).ignored, "sampling_params.json_schema#/uniqueItems");
  TinyService strict({.change = [](ServiceOptions& options) { options.strict_fields = true; }, .loop = false});
  EXPECT_THROW(read_generate(ordered_json::parse(R"({"text": "a", "unheard": 1})"), strict.service(), {}), ApiError);
  EXPECT_ANY_THROW(read_generate(ordered_json::parse(kUnique), strict.service(), {}));
}

TEST_F(GenerateRequest, TooManyTextsAreRefused) {
  ordered_json body = {{"text", std::vector<std::string>(65, "a")}};
  EXPECT_EQ(blamed(body.dump()), "text");
  body = {{"input_ids", std::vector<Tokens>(65, Tokens{1})}};
  EXPECT_EQ(blamed(body.dump()), "input_ids");
}

}  // namespace
}  // namespace quire::serve
