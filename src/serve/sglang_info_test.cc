// What a worker says about itself: what SGLang's router reads is there, and true.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/ngram_drafter.h"
#include "serve/api_error.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using nlohmann::json;
using testing::TinyService;
using Endpoint = void(std::shared_ptr<http::Exchange>, Service&);

json asked(Endpoint* endpoint, TinyService& tiny, const std::string& query = {}) {
  const auto exchange = testing::got("/", query);
  endpoint(exchange, tiny.service());
  EXPECT_EQ(exchange->status(), 200);
  return json::parse(exchange->body());
}

TEST(SglangInfo, ModelInfoHasWhatTheRouterReads) {
  TinyService tiny;
  const json info = asked(model_info, tiny);
  EXPECT_EQ(info.at("model_path"), "/models/tiny");
  EXPECT_EQ(info.at("tokenizer_path"), "/models/tiny");
  EXPECT_EQ(info.at("served_model_name"), "tiny");
  EXPECT_EQ(info.at("is_generation"), true);
  EXPECT_EQ(info.at("model_type"), "llama");
  EXPECT_EQ(info.at("architectures"), json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(info.at("has_image_understanding"), false);
  EXPECT_TRUE(info.at("weight_version").is_string());
  EXPECT_TRUE(info.at("preferred_sampling_params").is_null());
}

TEST(SglangInfo, ModelInfoHasTheModelsOwnSampling) {
  TinyService tiny({.change = [](ServiceOptions& options) { options.sampling = {.temperature = 0.2f, .top_k = 20}; }});
  EXPECT_EQ(asked(model_info, tiny).at("preferred_sampling_params").dump(), R"({"temperature":0.2,"top_k":20})");
}

TEST(SglangInfo, ServerInfoHasWhatCameOfDrafts) {
  const json without = asked(server_info, *std::make_unique<TinyService>());
  EXPECT_TRUE(without.at("speculative_algorithm").is_null());
  EXPECT_FALSE(without.at("internal_states")[0].contains("avg_spec_accept_length"));
  TinyService::Options options;
  options.engine.make_drafter = engine::ngram_drafters();
  TinyService tiny(options);
  const json info = asked(server_info, tiny), state = info.at("internal_states")[0];
  EXPECT_EQ(info.at("speculative_algorithm"), "NGRAM");
  EXPECT_EQ(info.at("speculative_num_draft_tokens"), 8);
  EXPECT_EQ(info.at("speculative_eagle_topk"), 0) << "of heads alone";
  EXPECT_EQ(state.at("avg_spec_accept_length"), 0);
  EXPECT_EQ(state.at("speculative_num_draft_tokens"), 8);
}

TEST(SglangInfo, ServerInfoHasWhatTheRouterReads) {
  TinyService tiny;
  const json info = asked(server_info, tiny);
  EXPECT_EQ(info.at("model_id"), "tiny");
  EXPECT_EQ(info.at("model_path"), "/models/tiny");
  EXPECT_EQ(info.at("served_model_name"), "tiny");
  EXPECT_EQ(info.at("tp_size"), 1);
  EXPECT_EQ(info.at("dp_size"), 1);
  EXPECT_EQ(info.at("disaggregation_mode"), "null");
  EXPECT_TRUE(info.at("load_balance_method").is_string());
  EXPECT_TRUE(info.at("version").is_string());
  EXPECT_EQ(info.at("max_total_tokens"), 4 * testing::kContext);
  EXPECT_EQ(info.at("max_running_requests"), 8);
  EXPECT_EQ(info.at("max_prefill_tokens"), 512);
  EXPECT_EQ(info.at("context_length"), testing::kContext);
  EXPECT_EQ(info.at("kv_cache_dtype"), "bf16");
  EXPECT_EQ(info.at("device"), "cpu");
  EXPECT_EQ(info.at("internal_states").size(), 1u);
  EXPECT_EQ(info.at("internal_states")[0].at("load"), 0);
}

// Steps an engine with one request that runs and one that waits.
TEST(SglangInfo, LoadsCountWhatRunsAndWaits) {
  TinyService tiny({.engine = {.max_total_tokens = 2048, .max_running_requests = 1}, .loop = false});
  const auto start = [&] {
    generate(testing::posted("/generate", R"({"text": "0123456789", "sampling_params": {"ignore_eos": true}})"),
             tiny.service(), {});
  };
  start();
  start();
  tiny.engine().step();
  const json old = asked(get_load, tiny);
  ASSERT_EQ(old.size(), 1u);
  EXPECT_EQ(old[0].at("dp_rank"), 0);
  EXPECT_EQ(old[0].at("num_reqs"), 2);
  EXPECT_EQ(old[0].at("num_waiting_reqs"), 1);
  EXPECT_EQ(old[0].at("num_tokens"), 16 + 11);  // a page, and the prompt that waits

  const json now = asked(loads, tiny, "include=core");
  EXPECT_TRUE(now.at("timestamp").is_string());
  EXPECT_TRUE(now.at("version").is_string());
  ASSERT_EQ(now.at("loads").size(), 1u);
  const json& load = now.at("loads")[0];
  EXPECT_EQ(load.at("dp_rank"), 0);
  EXPECT_EQ(load.at("num_running_reqs"), 1);
  EXPECT_EQ(load.at("num_waiting_reqs"), 1);
  EXPECT_EQ(load.at("num_used_tokens"), 16);
  EXPECT_EQ(load.at("num_total_tokens"), 16 + 11);
  EXPECT_EQ(load.at("max_total_num_tokens"), 2048);
  EXPECT_EQ(load.at("token_usage"), 16.0 / 2048);
  EXPECT_EQ(now.at("aggregate").at("total_tokens"), load.at("num_total_tokens"));
  EXPECT_EQ(now.at("aggregate").at("total_reqs"), 2);
}

TEST(SglangInfo, LoadsRefusesWhatItDoesNotHave) {
  TinyService tiny;
  for (const char* query :
       {"", "include=all", "include=core,queues", "dp_rank=0", "format=json", "include=core&dp_rank=0"})
    EXPECT_NO_THROW(asked(loads, tiny, query)) << query;
  for (const char* query : {"include=x", "include=core,x", "dp_rank=1", "format=prometheus"}) {
    EXPECT_THROW(asked(loads, tiny, query), ApiError) << query;
  }
}

}  // namespace
}  // namespace quire::serve
