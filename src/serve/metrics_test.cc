#include "serve/metrics.h"

#include <gtest/gtest.h>

#include "serve/testing_metrics.h"

namespace quire::serve {
namespace {

using testing::metric_value;
using testing::parse_metrics;

engine::EngineStats some_stats() {
  engine::EngineStats stats{};
  stats.running = 3;
  stats.queued = 5;
  stats.retracted = 1;
  stats.total_pages = 100;
  stats.free_pages = 40;
  stats.cached_pages = 50;
  stats.evictable_pages = 35;
  stats.page_size = 16;
  stats.prompt_tokens = 1000;
  stats.cached_prompt_tokens = 250;
  stats.generated_tokens = 123456789;
  stats.retractions = 2;
  stats.speculated = {.verifications = 40, .drafts = 80, .correct = 60};
  stats.speculated_by_model = {.verifications = 10, .drafts = 20, .correct = 10};
  return stats;
}

TEST(Metrics, TheParserRefusesWhatIsNotTheFormat) {
  const std::string good = "# HELP a b\n# TYPE a gauge\na{m=\"x\"} 1\n";
  EXPECT_EQ(parse_metrics(good).at("a").series.size(), 1u);
  for (const char* bad :
       {"", "a{m=\"x\"} 1\n", "# HELP a b\n# TYPE a gauge\na{m=\"x\"} 1", "# HELP a b\n# TYPE a gauge\na{m=x} 1\n",
        "# HELP a b\n# TYPE a gauge\nb{m=\"x\"} 1\n", "# HELP a b\n# TYPE a gauge\na{m=\"x\"} 1\na{m=\"x\"} 1\n",
        "# HELP a b\n# TYPE a gauge\na{m=\"x\\q\"} 1\n", "# HELP a b\n# TYPE a gauge\na{m=\"x\"} 1 z\n",
        "# HELP a b\n# TYPE a gauge\na{m=\"x} 1\n", "# HELP a b\n# TYPE a colour\na{m=\"x\"} 1\n",
        "# HELP a b\n# TYPE a counter\na{m=\"x\"} 1\n", "\n",
        "# HELP a b\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n"
        "a_sum{m=\"x\"} 1\na_count{m=\"x\"} 1\n"})
    EXPECT_ANY_THROW(parse_metrics(bad)) << bad;
}

TEST(Metrics, ExpositionIsTheFormatWhateverTheModelIsCalled) {
  for (const std::string name : {"smol", "a \"b\"\\\n{c}", ""}) {
    Metrics metrics(name);
    const auto families = parse_metrics(metrics.exposition(some_stats()));
    EXPECT_EQ(metric_value(families, "sglang:num_running_reqs", name), 3);
    for (const auto& [family, held] : families)
      for (const auto& [key, value] : held.series) EXPECT_EQ(key.second.at("model_name"), name) << family;
  }
}

TEST(Metrics, InvalidBytesInANameAreRepaired) {
  const auto families = parse_metrics(Metrics("a\xff").exposition(some_stats()));
  EXPECT_EQ(metric_value(families, "sglang:num_queue_reqs", "a\xEF\xBF\xBD"), 5);
}

TEST(Metrics, GaugesAreTheEngines) {
  const auto families = parse_metrics(Metrics("m").exposition(some_stats()));
  const auto value = [&](const char* name) { return metric_value(families, name, "m"); };
  EXPECT_EQ(value("sglang:num_running_reqs"), 3);
  EXPECT_EQ(value("sglang:num_queue_reqs"), 5);
  EXPECT_EQ(value("sglang:num_retracted_reqs"), 1);
  EXPECT_EQ(value("sglang:max_total_num_tokens"), 1600);
  EXPECT_EQ(value("sglang:kv_available_tokens"), 640);
  EXPECT_EQ(value("sglang:kv_evictable_tokens"), 560);
  EXPECT_EQ(value("sglang:kv_used_tokens"), 400);
  EXPECT_EQ(value("sglang:num_used_tokens"), 400);
  EXPECT_EQ(value("sglang:token_usage"), 0.25);
  EXPECT_EQ(value("sglang:cache_hit_rate"), 0.25);
  EXPECT_EQ(value("sglang:prompt_tokens_total"), 1000);
  EXPECT_EQ(value("sglang:cached_tokens_total"), 250);
  EXPECT_EQ(value("sglang:generation_tokens_total"), 123456789);
  EXPECT_EQ(value("sglang:num_retracted_requests_total"), 2);
  EXPECT_EQ(value("sglang:spec_verify_calls_total"), 40);
  EXPECT_EQ(value("sglang:spec_accept_length"), 2.5);
  EXPECT_EQ(value("sglang:spec_accept_rate"), 0.75);
  const auto of_drafter = [&](const char* name, const char* drafter) {
    return families.at(name).series.at({name, {{"drafter", drafter}, {"model_name", "m"}}});
  };
  EXPECT_EQ(of_drafter("quire:spec_verifications_total", "NGRAM"), 30);
  EXPECT_EQ(of_drafter("quire:spec_drafts_total", "NGRAM"), 60);
  EXPECT_EQ(of_drafter("quire:spec_correct_drafts_total", "EAGLE3"), 10);
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
}

TEST(Metrics, OfAGpuAreThereWhereOneComputes) {
  engine::EngineStats stats = some_stats();
  stats.pool_bytes = 90'000'000'000;
  stats.overlapped_steps = 2000;
  stats.idle_us = 5000;
  const cuda::Memory memory{.free = 20'000'000'000, .total = 140'000'000'000};
  const auto families = parse_metrics(Metrics("m").exposition(stats, memory));
  EXPECT_EQ(metric_value(families, "quire:gpu_memory_total_bytes", "m"), 140e9);
  EXPECT_EQ(metric_value(families, "quire:gpu_memory_free_bytes", "m"), 20e9);
  EXPECT_EQ(metric_value(families, "quire:gpu_pool_bytes", "m"), 90e9);
  EXPECT_EQ(metric_value(families, "quire:gpu_overlapped_steps_total", "m"), 2000);
  EXPECT_EQ(metric_value(families, "quire:gpu_idle_seconds_total", "m"), 0.005);
  EXPECT_FALSE(parse_metrics(Metrics("m").exposition(stats)).contains("quire:gpu_pool_bytes"));
}

TEST(Metrics, AnIdleEngineHasNoRatios) {
  const auto families = parse_metrics(Metrics("m").exposition(engine::EngineStats{}));
  EXPECT_EQ(metric_value(families, "sglang:token_usage", "m"), 0);
  EXPECT_EQ(metric_value(families, "sglang:cache_hit_rate", "m"), 0);
  EXPECT_EQ(metric_value(families, "sglang:spec_accept_length", "m"), 0);
  EXPECT_EQ(metric_value(families, "sglang:spec_accept_rate", "m"), 0);
}

TEST(Metrics, RequestsAreCountedFromTheirBeginningToTheirEnd) {
  Metrics metrics("m");
  for (int i = 0; i < 3; ++i) metrics.request_started();
  metrics.first_token(0.3, 0.1);
  metrics.inter_token(0.03, 3);
  metrics.request_ended(1.5, 100, 64, 4, false);
  metrics.request_ended(0.5, 10, 0, 0, true);
  const auto families = parse_metrics(metrics.exposition(some_stats()));
  const auto value = [&](const char* name) { return metric_value(families, name, "m"); };
  EXPECT_EQ(value("quire:requests_in_flight"), 1);
  EXPECT_EQ(value("sglang:num_requests_total"), 2);
  EXPECT_EQ(value("sglang:num_aborted_requests_total"), 1);
  EXPECT_EQ(value("sglang:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(value("sglang:queue_time_seconds_sum"), 0.1);
  EXPECT_EQ(value("sglang:inter_token_latency_seconds_count"), 3);
  EXPECT_DOUBLE_EQ(value("sglang:inter_token_latency_seconds_sum"), 0.03);
  EXPECT_EQ(value("sglang:e2e_request_latency_seconds_sum"), 2);
  EXPECT_EQ(value("sglang:prompt_tokens_histogram_sum"), 110);
  EXPECT_EQ(value("sglang:uncached_prompt_tokens_histogram_sum"), 46);
  EXPECT_EQ(value("sglang:generation_tokens_histogram_sum"), 4);
  EXPECT_EQ(value("sglang:gen_throughput"), 4);
  EXPECT_EQ(metrics.tokens_per_second(), 4);

  const auto& buckets = families.at("sglang:inter_token_latency_seconds").series;
  EXPECT_EQ(buckets.at({"sglang:inter_token_latency_seconds_bucket", {{"model_name", "m"}, {"le", "0.008"}}}), 0);
  EXPECT_EQ(buckets.at({"sglang:inter_token_latency_seconds_bucket", {{"model_name", "m"}, {"le", "0.01"}}}), 3);
}

TEST(Metrics, StrangersCannotMakeSeries) {
  Metrics metrics("m");
  for (int i = 0; i < 100; ++i) metrics.http_answer("/x" + std::to_string(i), 404);
  metrics.http_answer("/v1/models/tiny", 200);
  metrics.http_answer("/v1/models", 200);
  metrics.http_answer("/generate", 503);
  const auto families = parse_metrics(metrics.exposition(some_stats()));
  const auto& series = families.at("sglang:http_responses_total").series;
  const auto count = [&](const char* endpoint, const char* status) {
    return series.at(
        {"sglang:http_responses_total", {{"model_name", "m"}, {"endpoint", endpoint}, {"status_code", status}}});
  };
  EXPECT_EQ(series.size(), 3u);
  EXPECT_EQ(count("other", "404"), 100);
  EXPECT_EQ(count("/v1/models", "200"), 2);
  EXPECT_EQ(count("/generate", "503"), 1);
}

}  // namespace
}  // namespace quire::serve
