// Ids past the tokenizer's vocabulary, which models have logits for all the same: never drawn, and refused where a call
// names one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "serve/openai_testing.h"
#include "serve/sglang.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::answered;
using testing::kVocabulary;
using testing::TinyService;

TinyService::Options with_more_logits() { return {.logits_without_token = 2000}; }

TEST(TokenBounds, IdsWithoutATokenAreNeverDrawn) {
  TinyService tiny(with_more_logits());
  ASSERT_EQ(tiny.service().config().vocabulary, kVocabulary + 2000);
  for (const double temperature : {0.0, 1.0, 10.0}) {
    const ordered_json body = {
        {"text", "hello"},
        {"return_logprob", true},
        {"logprob_start_len", 0},
        {"top_logprobs_num", 5},
        {"return_text_in_logprobs", true},
        {"sampling_params", {{"temperature", temperature}, {"max_new_tokens", 60}, {"ignore_eos", true}}}};
    const auto exchange = answered(generate, tiny.service(), body);
    ASSERT_EQ(exchange->status(), 200) << exchange->body();
    const ordered_json answer = ordered_json::parse(exchange->body());
    EXPECT_EQ(answer.at("output_ids").size(), 60u);
    for (const int32_t id : answer.at("output_ids")) EXPECT_LT(id, kVocabulary);
    for (const char* list : {"output_top_logprobs", "input_top_logprobs"})
      for (const ordered_json& entries : answer.at("meta_info").at(list))
        for (const ordered_json& entry : entries) EXPECT_LT(entry.at(1), kVocabulary);
  }
}

TEST(TokenBounds, IdsWithoutATokenThatACallNamesAreRefusedByName) {
  TinyService tiny(with_more_logits());
  const std::string id = std::to_string(kVocabulary);
  const auto expect_refused = [&](testing::Handler call, const std::string& body, const std::string& param) {
    SCOPED_TRACE(body);
    testing::expect_api_error([&] { call(testing::posted("/", body), tiny.service(), {}); }, 400, param, id);
  };
  expect_refused(generate, cat(R"({"input_ids": [1, )", id, "]}"), "input_ids");
  expect_refused(generate, cat(R"({"input_ids": [[1], [1, )", id, "]]}"), "input_ids[1]");
  expect_refused(generate, cat(R"({"text": "a", "return_logprob": true, "token_ids_logprob": [)", id, "]}"),
                 "token_ids_logprob");
  expect_refused(generate, cat(R"({"text": "a", "sampling_params": {"logit_bias": {")", id, R"(": 1}}})"),
                 "sampling_params.logit_bias");
  expect_refused(completions, cat(R"({"prompt": [1, )", id, "]}"), "prompt[1]");
  expect_refused(completions, cat(R"({"prompt": "a", "logit_bias": {")", id, R"(": 1}})"), "logit_bias");
  const auto detokenized = [](std::shared_ptr<http::Exchange> exchange, Service& service, const Caller&) {
    detokenize(std::move(exchange), service);
  };
  expect_refused(detokenized, cat(R"({"tokens": [1, )", id, "]}"), "tokens");
}

TEST(TokenBounds, PrioritiesOutOfRangeAreRefused) {
  TinyService tiny({.loop = false});
  for (const char* wrong : {"101", "-101", "2147483647"}) {
    const auto refused = [&](testing::Handler call, const std::string& body) {
      testing::expect_api_error([&] { call(testing::posted("/", body), tiny.service(), {}); }, 400, "priority");
    };
    refused(generate, cat(R"({"text": "a", "priority": )", wrong, "}"));
    refused(completions, cat(R"({"prompt": "a", "priority": )", wrong, "}"));
  }
}

}  // namespace
}  // namespace quire::serve
