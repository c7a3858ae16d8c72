#include "serve/metrics.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "serve/endpoints.h"
#include "serve/info_pool.h"
#include "serve/metrics_histogram.h"
#include "serve/metrics_rate.h"
#include "serve/metrics_text.h"

namespace quire::serve {

namespace {

// SGLang's buckets, so that its dashboards and alerts mean the same here, and finer ones below for small models.
const std::vector<double> kFirstTokenSeconds = {.005, .01, .02, .04, .06, .08, .1, .2, .4, .6,  .8,  1,
                                                2,    4,   6,   8,   10,  20,  40, 60, 80, 100, 200, 400};
const std::vector<double> kInterTokenSeconds = {.002, .004, .006, .008, .010, .015, .020, .025, .030, .035, .040, .060,
                                                .080, .100, .200, .400, .600, .800, 1,    2,    4,    6,    8};
const std::vector<double> kRequestSeconds = {.005, .01, .02, .04, .06, .08, .1, .2,  .4,  .6,  .8,  1,    2,    4,
                                             6,    8,   10,  20,  40,  60,  80, 100, 200, 400, 600, 1200, 1800, 2400};
const std::vector<double> kQueueSeconds = {
    0,  .001, .005, .010, .050, .1,  .2,  .5,  1,   2,   3,   4,   5,    10,   15,   20,   30,   40,   50,   60,
    70, 80,   90,   100,  200,  300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000};
const std::vector<double> kTokens = {100,    300,    500,    700,    1000,   1500,   2000,    3000,   4000,
                                     5000,   6000,   7000,   8000,   9000,   10000,  12500,   15000,  17500,
                                     20000,  22500,  25000,  27500,  30000,  35000,  40000,   60000,  80000,
                                     100000, 200000, 300000, 400000, 600000, 800000, 1000000, 1100000};

int64_t resident_bytes() {
  long pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 0;
  const int read = std::fscanf(file, "%ld %ld", &pages, &resident);
  std::fclose(file);
  return read == 2 ? int64_t{resident} * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(std::string name) : model_name(std::move(name)) {}

  double now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
  void write_requests(MetricsText& text) const;
  void write_http(MetricsText& text) const;

  const std::string model_name;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  std::atomic<int64_t> started = 0, ended = 0, aborted = 0;
  Histogram first_token{kFirstTokenSeconds}, inter_token{kInterTokenSeconds}, request{kRequestSeconds},
      queue{kQueueSeconds}, prompt{kTokens}, uncached_prompt{kTokens}, generation{kTokens};
  Rate generated;

  mutable std::mutex mutex;                                  // of http: once an answer, not once a token
  std::map<std::pair<std::string_view, int>, int64_t> http;  // endpoint and status: answers
};

Metrics::Metrics(std::string model_name) : impl_(std::make_unique<Impl>(std::move(model_name))) {}
Metrics::~Metrics() = default;

void Metrics::request_started() { ++impl_->started; }

void Metrics::first_token(double seconds_since_request, double queued_seconds) {
  impl_->first_token.observe(seconds_since_request);
  impl_->queue.observe(queued_seconds);
  impl_->generated.add(1, impl_->now());
}

void Metrics::inter_token(double seconds, int32_t tokens) {
  if (tokens <= 0) return;
  impl_->inter_token.observe(seconds / tokens, tokens);
  impl_->generated.add(tokens, impl_->now());
}

void Metrics::request_ended(double seconds, int32_t prompt_tokens, int32_t cached_tokens, int32_t generated,
                            bool aborted) {
  ++impl_->ended;
  impl_->aborted += aborted;
  impl_->request.observe(seconds);
  impl_->prompt.observe(prompt_tokens);
  impl_->uncached_prompt.observe(prompt_tokens - cached_tokens);
  impl_->generation.observe(generated);
}

void Metrics::http_answer(const std::string& path, int status) {
  const std::lock_guard lock(impl_->mutex);
  ++impl_->http[{counted_path(path), status}];
}

double Metrics::tokens_per_second() const { return impl_->generated.per_second(impl_->now()); }

namespace {

void write_speculation(MetricsText& text, const engine::EngineStats& stats) {
  const engine::Speculated &all = stats.speculated, &by_head = stats.speculated_by_model;
  text.gauge("sglang:spec_accept_length", "Tokens that a verification of drafts gave, in the mean.",
             all.accept_length());
  text.gauge("sglang:spec_accept_rate", "Part of the verified drafts that came true.", all.accept_rate());
  text.counter("sglang:spec_verify_calls_total", "Verifications of drafts, each of one request in one step.",
               static_cast<double>(all.verifications));
  const auto by_drafter = [&](const char* name, const char* help, int64_t engine::Speculated::*count) {
    text.begin(name, "counter", help);
    text.series(name, {{"drafter", "NGRAM"}}, static_cast<double>(all.*count - by_head.*count));
    text.series(name, {{"drafter", "EAGLE3"}}, static_cast<double>(by_head.*count));
  };
  by_drafter("quire:spec_verifications_total", "Verifications by who made the drafts: the text itself, or a head.",
             &engine::Speculated::verifications);
  by_drafter("quire:spec_drafts_total", "Drafts that were verified.", &engine::Speculated::drafts);
  by_drafter("quire:spec_correct_drafts_total", "Drafts that came true.", &engine::Speculated::correct);
}

void write_engine(MetricsText& text, const engine::EngineStats& stats) {
  const PoolTokens pool = pool_tokens(stats);
  text.gauge("sglang:num_running_reqs", "Requests in the running batch.", stats.running);
  text.gauge("sglang:num_queue_reqs", "Requests that wait for their turn.", stats.queued);
  text.gauge("sglang:num_retracted_reqs", "Requests that wait to come back after they gave their pages to others.",
             stats.retracted);
  text.gauge("sglang:num_used_tokens", "Tokens that running requests hold in the K/V pool.", pool.used);
  text.gauge("sglang:token_usage", "Used part of the K/V pool, from 0 to 1.", pool.usage());
  text.gauge("sglang:max_total_num_tokens", "Tokens that fit in the K/V pool.", pool.total);
  text.gauge("sglang:kv_available_tokens", "Free tokens of the K/V pool.", pool.free);
  text.gauge("sglang:kv_evictable_tokens", "Tokens of the K/V pool that only cached prefixes hold.", pool.cached);
  text.gauge("sglang:kv_used_tokens", "Tokens that running requests hold in the K/V pool.", pool.used);
  text.gauge("sglang:page_size", "Tokens of a page of the K/V pool.", stats.page_size);
  text.gauge("sglang:cache_hit_rate", "Part of all prompt tokens that came from cached prefixes.",
             cache_hit_rate(stats));
  text.counter("sglang:prompt_tokens_total", "Prompt tokens of requests that ran, cached ones included.",
               static_cast<double>(stats.prompt_tokens));
  text.counter("sglang:cached_tokens_total", "Prompt tokens that came from cached prefixes.",
               static_cast<double>(stats.cached_prompt_tokens));
  text.counter("sglang:generation_tokens_total", "Generated tokens.", static_cast<double>(stats.generated_tokens));
  text.counter("sglang:num_retracted_requests_total", "Times that a running request gave its pages to others.",
               static_cast<double>(stats.retractions));
  write_speculation(text, stats);
  text.counter("quire:engine_steps_total", "Steps of the engine.", static_cast<double>(stats.steps));
  text.gauge("quire:engine_schedule_seconds", "Mean time of a step outside the forward pass and sampling.",
             stats.schedule_us * 1e-6);
}

void write_gpu(MetricsText& text, const engine::EngineStats& stats, const cuda::Memory& memory) {
  text.gauge("quire:gpu_memory_total_bytes", "Memory of the GPU.", static_cast<double>(memory.total));
  text.gauge("quire:gpu_memory_free_bytes", "Memory of the GPU that nobody has taken, other processes included.",
             static_cast<double>(memory.free));
  text.gauge("quire:gpu_pool_bytes", "Memory of the GPU that the K/V pool has.", static_cast<double>(stats.pool_bytes));
  text.counter("quire:gpu_overlapped_steps_total",
               "Steps of one token for each request that were launched before the last one's tokens were read.",
               static_cast<double>(stats.overlapped_steps));
  text.counter("quire:gpu_idle_seconds_total", "Time that the GPU did nothing before those steps.",
               stats.idle_us * 1e-6);
}

}  // namespace

void Metrics::Impl::write_requests(MetricsText& text) const {
  const int64_t done = ended;  // before started: what is in flight is never negative
  text.gauge("quire:requests_in_flight", "Requests accepted and not ended.", static_cast<double>(started - done));
  text.counter("sglang:num_requests_total", "Requests that ended, aborted ones included.", static_cast<double>(done));
  text.counter("sglang:num_aborted_requests_total", "Requests that ended before their answer was complete.",
               static_cast<double>(aborted));
  text.gauge("sglang:gen_throughput", "Generated tokens per second, over the last seconds.",
             generated.per_second(now()));
  text.histogram("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.", first_token);
  text.histogram("sglang:inter_token_latency_seconds", "Between two tokens of a request.", inter_token);
  text.histogram("sglang:e2e_request_latency_seconds", "From a request's arrival to its end.", request);
  text.histogram("sglang:queue_time_seconds", "From a request's arrival until it first ran.", queue);
  text.histogram("sglang:prompt_tokens_histogram", "Tokens of a prompt.", prompt);
  text.histogram("sglang:uncached_prompt_tokens_histogram", "Tokens of a prompt that had to be computed.",
                 uncached_prompt);
  text.histogram("sglang:generation_tokens_histogram", "Generated tokens of a request.", generation);
}

void Metrics::Impl::write_http(MetricsText& text) const {
  text.begin("sglang:http_responses_total", "counter", "Answers by endpoint and status.");
  const std::lock_guard lock(mutex);
  for (const auto& [key, count] : http)
    text.series("sglang:http_responses_total",
                {{"endpoint", std::string(key.first)}, {"status_code", std::to_string(key.second)}},
                static_cast<double>(count));
}

std::string Metrics::exposition(const engine::EngineStats& stats, const std::optional<cuda::Memory>& gpu) const {
  MetricsText text(impl_->model_name);
  write_engine(text, stats);
  if (gpu) write_gpu(text, stats, *gpu);
  impl_->write_requests(text);
  impl_->write_http(text);
  text.gauge("process_resident_memory_bytes", "Resident memory of the process.", static_cast<double>(resident_bytes()));
  return text.take();
}

}  // namespace quire::serve
