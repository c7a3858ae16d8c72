#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "engine/ngram_drafter.h"
#include "serve/api_error.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;
using testing::TestingExchange;
using testing::TinyService;

std::shared_ptr<TestingExchange> call(TinyService& tiny, const std::string& body) {
  auto exchange = testing::posted("/generate", body);
  generate(exchange, tiny.service(), {});
  return exchange;
}

json answer(TinyService& tiny, const std::string& body) {
  const auto exchange = call(tiny, body);
  EXPECT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
  EXPECT_EQ(exchange->response().content_type, "application/json");
  return json::parse(exchange->body());
}

// The events of a stream, without the last, which must be [DONE].
std::vector<json> events_of(const std::shared_ptr<TestingExchange>& exchange) {
  EXPECT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200);
  EXPECT_EQ(exchange->response().content_type, "text/event-stream");
  std::vector<json> parsed;
  std::vector<std::string> parts = exchange->parts();
  EXPECT_EQ(parts.back(), "data: [DONE]\n\n");
  parts.pop_back();
  for (const std::string& part : parts) {
    EXPECT_TRUE(part.starts_with("data: ") && part.ends_with("\n\n")) << part;
    parsed.push_back(json::parse(part.substr(6)));
  }
  return parsed;
}
std::vector<json> events(TinyService& tiny, const std::string& body) { return events_of(call(tiny, body)); }

constexpr const char* kGreedy =
    R"({"text": "hello", "rid": "me", "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": true}})";

TEST(SglangGenerate, AnswersWithTextTokensAndCounts) {
  TinyService tiny;
  const json body = answer(tiny, kGreedy);
  const std::vector<int32_t> ids = body.at("output_ids");
  const json& meta = body.at("meta_info");
  EXPECT_EQ(ids.size(), 12u);
  EXPECT_EQ(body.at("text"), tiny.tokenizer().decode(ids, true));
  EXPECT_EQ(meta.at("id"), "me");
  EXPECT_EQ(meta.at("finish_reason"), json::parse(R"({"type": "length", "length": 12})"));
  EXPECT_EQ(meta.at("prompt_tokens"), 6);
  EXPECT_EQ(meta.at("completion_tokens"), 12);
  EXPECT_EQ(meta.at("cached_tokens"), 0);
  EXPECT_GT(meta.at("e2e_latency"), 0);
  EXPECT_FALSE(meta.contains("output_token_logprobs"));
}

// A tiny model that is greedy goes around in circles, which its own text foretells.
TEST(SglangGenerate, TellsWhatCameOfDraftsAndDoesNotDraftWhereACallSaysSo) {
  json body = json::parse(kGreedy);
  body["sampling_params"]["max_new_tokens"] = 100;
  TinyService plain;
  const json expected = answer(plain, body.dump());
  TinyService::Options options;
  options.engine.make_drafter = engine::ngram_drafters();
  TinyService tiny(options);
  const json drafted = answer(tiny, body.dump());
  EXPECT_EQ(drafted.at("output_ids"), expected.at("output_ids"));
  const json& meta = drafted.at("meta_info");
  const auto correct = meta.at("spec_num_correct_drafts").get<int>(), rounds = meta.at("spec_verify_ct").get<int>();
  EXPECT_GT(rounds, 0);
  EXPECT_GE(meta.at("spec_num_proposed_drafts").get<int>(), correct);
  EXPECT_DOUBLE_EQ(meta.at("spec_accept_length").get<double>(), 1 + static_cast<double>(correct) / rounds);
  EXPECT_LE(meta.at("spec_accept_rate").get<double>(), 1);
  const auto histogram = meta.at("spec_correct_drafts_histogram").get<std::vector<int>>();
  EXPECT_GT(histogram.back(), 0);
  EXPECT_EQ(std::accumulate(histogram.begin(), histogram.end(), 0), rounds);
  int came = 0;
  for (size_t i = 0; i < histogram.size(); ++i) came += static_cast<int>(i) * histogram[i];
  EXPECT_EQ(came, correct);
  json constrained = body;
  constrained["sampling_params"]["regex"] = "(abc|abd)+";
  EXPECT_EQ(answer(tiny, constrained.dump()).at("output_ids"), answer(plain, constrained.dump()).at("output_ids"));
  body["speculative"] = false;
  const json without = answer(tiny, body.dump());
  EXPECT_EQ(without.at("output_ids"), expected.at("output_ids"));
  EXPECT_FALSE(without.at("meta_info").contains("spec_verify_ct"));
  EXPECT_FALSE(expected.at("meta_info").contains("spec_verify_ct"));
}

TEST(SglangGenerate, StreamsTheTextSoFar) {
  TinyService tiny;
  const json whole = answer(tiny, kGreedy);
  json body = json::parse(kGreedy);
  body["stream"] = true;
  const std::vector<json> parts = events(tiny, body.dump());
  std::string text;
  size_t tokens = 0;
  for (const json& part : parts) {
    const std::string now = part.at("text");
    EXPECT_TRUE(now.starts_with(text));
    text = now;
    EXPECT_GE(part.at("output_ids").size(), tokens);
    tokens = part.at("output_ids").size();
    EXPECT_EQ(part.at("meta_info").at("completion_tokens"), tokens);
    EXPECT_EQ(part.at("meta_info").at("finish_reason").is_null(), &part != &parts.back());
    EXPECT_FALSE(part.contains("index"));
  }
  EXPECT_EQ(whole.at("text"), text);
  EXPECT_EQ(parts.back().at("output_ids"), whole.at("output_ids"));
}

TEST(SglangGenerate, AStopTextIsNamedAndLeftOut) {
  TinyService tiny;
  const std::string whole = answer(tiny, kGreedy).at("text");
  json body = json::parse(kGreedy);
  size_t middle = whole.size() / 2;
  while ((whole[middle] & 0xC0) == 0x80) --middle;  // not inside a character
  const std::string stop = whole.substr(middle);
  body["sampling_params"]["stop"] = stop;
  const json stopped = answer(tiny, body.dump());
  EXPECT_EQ(stopped.at("meta_info").at("finish_reason"), (json{{"type", "stop"}, {"matched", stop}}));
  EXPECT_EQ(stopped.at("text"), whole.substr(0, whole.find(stop)));
  body["sampling_params"]["no_stop_trim"] = true;
  EXPECT_EQ(answer(tiny, body.dump()).at("text"), whole.substr(0, whole.find(stop) + stop.size()));
}

TEST(SglangGenerate, AStopTokenIsNamed) {
  TinyService tiny;
  const std::vector<int32_t> ids = answer(tiny, kGreedy).at("output_ids");
  json body = json::parse(kGreedy);
  body["sampling_params"]["stop_token_ids"] = {ids[0]};
  const json stopped = answer(tiny, body.dump());
  EXPECT_EQ(stopped.at("meta_info").at("finish_reason"), (json{{"type", "stop"}, {"matched", ids[0]}}));
}

TEST(SglangGenerate, ABatchIsAListInOrder) {
  TinyService tiny;
  const json both = answer(tiny, R"({"text": ["hello", "other"], "rid": "b", "sampling_params":
      {"temperature": 0, "max_new_tokens": 12, "ignore_eos": true}})");
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].at("output_ids"), answer(tiny, kGreedy).at("output_ids"));
  EXPECT_EQ(both[0].at("meta_info").at("id"), "b_0");
  EXPECT_EQ(both[1].at("meta_info").at("id"), "b_1");
  EXPECT_NE(both[0].at("text"), both[1].at("text"));
}

TEST(SglangGenerate, ABatchStreamsWithIndices) {
  TinyService tiny;
  const std::string body = R"({"text": ["hello", "other"], "stream": STREAM, "sampling_params":
      {"temperature": 0, "max_new_tokens": 5, "n": 2, "ignore_eos": true}})";
  const auto with = [&](const char* value) { return std::string(body).replace(body.find("STREAM"), 6, value); };
  const json whole = answer(tiny, with("false"));
  std::map<int, json> last;
  for (const json& part : events(tiny, with("true"))) last[part.at("index")] = part;
  ASSERT_EQ(last.size(), 4u);
  ASSERT_EQ(whole.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(last[i].at("text"), whole[i].at("text"));
}

TEST(SglangGenerate, GivesLogprobsOfPromptAndOutput) {
  TinyService tiny;
  const json body = answer(tiny, R"({"text": "hello", "return_logprob": true, "logprob_start_len": 0,
      "top_logprobs_num": 3, "token_ids_logprob": [7, 8], "return_text_in_logprobs": true,
      "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": true}})");
  const json& meta = body.at("meta_info");
  const json& input = meta.at("input_token_logprobs");
  ASSERT_EQ(input.size(), 6u);
  EXPECT_EQ(input[0], json::parse(R"([null, 256, "<s>"])"));
  EXPECT_EQ(input[1][1], 'h');
  EXPECT_EQ(input[1][2], "h");
  EXPECT_LT(input[1][0], 0);
  const json& output = meta.at("output_token_logprobs");
  ASSERT_EQ(output.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(output[i][1], body.at("output_ids")[i]);
    ASSERT_EQ(meta.at("output_top_logprobs")[i].size(), 3u);
    EXPECT_EQ(meta.at("output_top_logprobs")[i][0], output[i]);  // greedy: the likeliest was drawn
    ASSERT_EQ(meta.at("output_token_ids_logprobs")[i].size(), 2u);
    EXPECT_EQ(meta.at("output_token_ids_logprobs")[i][1][1], 8);
  }
  EXPECT_TRUE(meta.at("input_top_logprobs")[0].is_null());
  EXPECT_EQ(meta.at("input_top_logprobs")[5].size(), 3u);
  EXPECT_EQ(meta.at("input_token_ids_logprobs").size(), 6u);
}

TEST(SglangGenerate, AStreamGivesThePromptsLogprobsOnce) {
  TinyService tiny({.loop = false});  // an event for every token
  const auto exchange = call(tiny, R"({"text": "hello", "return_logprob": true, "logprob_start_len": 0,
      "top_logprobs_num": 2, "stream": true, "sampling_params": {"max_new_tokens": 4, "ignore_eos": true}})");
  while (tiny.engine().step()) {
  }
  const std::vector<json> parts = events_of(exchange);
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0].at("meta_info").at("input_token_logprobs").size(), 6u);
  EXPECT_EQ(parts[0].at("meta_info").at("input_top_logprobs").size(), 6u);
  for (size_t i = 1; i < parts.size(); ++i) {
    const json& meta = parts[i].at("meta_info");
    EXPECT_FALSE(meta.contains("input_token_logprobs") || meta.contains("input_top_logprobs")) << meta;
    EXPECT_EQ(meta.at("output_token_logprobs").size(), parts[i].at("output_ids").size()) << "those are cumulative";
  }
}

TEST(SglangGenerate, ByDefaultOnlyTheOutputHasLogprobs) {
  TinyService tiny;
  const json meta = answer(tiny, R"({"text": "hello", "return_logprob": true,
      "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}})")
                        .at("meta_info");
  EXPECT_EQ(meta.at("input_token_logprobs"), json::array());
  EXPECT_EQ(meta.at("output_token_logprobs").size(), 2u);
  EXPECT_FALSE(meta.contains("output_top_logprobs"));
}

TEST(SglangGenerate, NoNewTokensStillGivesThePromptsLogprobs) {
  TinyService tiny;
  const json body = answer(tiny, R"({"text": "hello", "return_logprob": true, "logprob_start_len": 2,
      "sampling_params": {"max_new_tokens": 0}})");
  EXPECT_EQ(body.at("text"), "");
  EXPECT_EQ(body.at("meta_info").at("input_token_logprobs").size(), 4u);
  EXPECT_EQ(body.at("meta_info").at("completion_tokens"), 0);
}

TEST(SglangGenerate, AConstraintHolds) {
  TinyService tiny;
  const json body = answer(tiny, R"({"text": "hello", "sampling_params": {"regex": "(yes|no)!", "seed": 1}})");
  const std::string text = body.at("text");
  EXPECT_TRUE(text == "yes!" || text == "no!") << text;
  EXPECT_EQ(body.at("meta_info").at("finish_reason").at("type"), "stop");
}

TEST(SglangGenerate, SecondTimeThePrefixIsCached) {
  TinyService tiny;
  const json body = {{"text", std::string(100, 'x')}, {"sampling_params", {{"max_new_tokens", 1}}}};
  EXPECT_EQ(answer(tiny, body.dump()).at("meta_info").at("cached_tokens"), 0);
  EXPECT_EQ(answer(tiny, body.dump()).at("meta_info").at("cached_tokens"), 96);
}

TEST(SglangGenerate, AnAbortedRequestSaysSo) {
  TinyService tiny({.loop = false});
  const auto exchange = call(tiny, R"({"text": "hello", "rid": "long", "stream": true,
      "sampling_params": {"max_new_tokens": null, "ignore_eos": true}})");
  for (int i = 0; i < 3; ++i) tiny.engine().step();
  EXPECT_EQ(tiny.service().abort("long"), 1);
  tiny.engine().step();
  ASSERT_TRUE(exchange->ended());
  const std::vector<std::string> parts = exchange->parts();
  ASSERT_EQ(parts.size(), 5u);  // three tokens, the end, [DONE]
  const json last = json::parse(parts[3].substr(6));
  EXPECT_EQ(last.at("meta_info").at("finish_reason"), json::parse(R"({"type": "abort", "message": "Aborted"})"));
  EXPECT_EQ(last.at("output_ids").size(), 3u);
}

TEST(SglangGenerate, WhatCannotRunIsRefusedInsteadOfAnswered) {
  TinyService tiny;
  const auto status = [&](const std::string& body) {
    try {
      return call(tiny, body)->status();
    } catch (const ApiError& error) {
      return error.status;
    }
  };
  EXPECT_EQ(status("{"), 400);
  EXPECT_EQ(status(R"({"input_ids": [99999]})"), 400);
  EXPECT_EQ(status(json{{"text", std::string(testing::kContext + 1, 'x')}}.dump()), 400);
  EXPECT_EQ(status(R"({"text": "a", "sampling_params": {"regex": "("}})"), 400);
  EXPECT_EQ(status(R"({"text": "a", "sampling_params": {"stop": ["b", ""]}})"), 400);
  EXPECT_EQ(status(R"({"text": "a", "sampling_params": {"logit_bias": {"99999": 1}}})"), 400);
  tiny.service().drain();
  EXPECT_EQ(status(R"({"text": "a"})"), 503);
}

TEST(SglangGenerate, ABatchThatDoesNotFitInTheQueueLeavesNothingBehind) {
  TinyService tiny(
      {.engine = {.max_total_tokens = 2048, .max_running_requests = 2, .max_queued_requests = 1}, .loop = false});
  auto exchange = testing::posted("/generate", R"({"text": ["a", "b", "c", "d", "e"]})");
  generate(exchange, tiny.service(), {});
  while (tiny.engine().step()) {
  }
  EXPECT_EQ(exchange->status(), 503) << "five do not fit where there is room for three";
  EXPECT_EQ(tiny.service().jobs(), 0);
}

TEST(SglangGenerate, ABatchIsLetInAsAWhole) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.most_jobs_of_a_key = 1; }});
  const auto exchange =
      testing::posted("/generate", R"({"text": ["a", "b", "c"], "sampling_params": {"max_new_tokens": 2}})");
  generate(exchange, tiny.service(), {.key = 0});
  ASSERT_TRUE(exchange->wait_until_ended());
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
}

TEST(SglangGenerate, AClientThatLeavesCancelsItsBatch) {
  TinyService tiny;
  const auto exchange = call(tiny, R"({"text": ["a", "b"], "stream": true,
      "sampling_params": {"max_new_tokens": null, "ignore_eos": true}})");
  ASSERT_TRUE(exchange->wait_for_parts(1));
  exchange->leave();
  EXPECT_TRUE(tiny.wait_until_idle());
}

}  // namespace
}  // namespace quire::serve
