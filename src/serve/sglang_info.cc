#include <chrono>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/types.h"
#include "model/family.h"
#include "serve/api_error.h"
#include "serve/info_pool.h"
#include "serve/json_text.h"
#include "serve/sglang.h"

namespace quire::serve {

namespace {

using nlohmann::ordered_json;

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S+00:00", &parts)};
}

// How busy the worker is: what SGLang calls the state of one data-parallel rank. There is one.
ordered_json load_of(const Service& service, double tokens_per_second) {
  const engine::EngineStats stats = service.stats();
  const PoolTokens pool = pool_tokens(stats);
  return {{"dp_rank", 0},
          {"num_running_reqs", stats.running},
          {"num_waiting_reqs", stats.queued},
          {"num_used_tokens", pool.used},
          {"num_total_tokens", pool.used + stats.queued_tokens},
          {"max_total_num_tokens", pool.total},
          {"max_running_requests", service.engine_options().max_running_requests},
          {"token_usage", pool.usage()},
          {"gen_throughput", tokens_per_second},
          {"cache_hit_rate", cache_hit_rate(stats)}};
}

// The values of "a=1&b=2". What they may be has no characters that need an escape.
std::map<std::string, std::string, std::less<>> query_of(std::string_view query) {
  std::map<std::string, std::string, std::less<>> values;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.size(), pair.find('='));
    values.emplace(pair.substr(0, equals), pair.substr(std::min(pair.size(), equals + 1)));
  }
  return values;
}

// There is one section: what else SGLang has is about what quire does not have, and is left out as it does then.
void check_loads_query(std::string_view query) {
  static const std::set<std::string, std::less<>> kSections = {"core",   "memory", "spec", "lora",
                                                               "disagg", "queues", "all"};
  for (const auto& [name, value] : query_of(query)) {
    if (name == "include") {
      std::string_view rest = value;
      while (!rest.empty()) {
        const std::string_view section = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), section.size() + 1));
        if (!kSections.contains(section)) throw ApiError(400, "include: unknown section", "include");
      }
    } else if (name == "dp_rank") {
      if (value != "0") throw ApiError(400, "dp_rank: there is only rank 0", "dp_rank");
    } else if (name == "format") {
      if (value != "json") throw ApiError(400, "format: only json is supported", "format");
    }
  }
}

// What is drawn with where calls say nothing; what everybody draws with is left out.
ordered_json sampling_of(const ServiceOptions& options) {
  const ops::SamplingParams &ours = options.sampling, usual;
  ordered_json params;
  const auto add = [&](const char* name, auto value, auto otherwise) {
    if (value != otherwise) params[name] = ordered_json::parse(json_number(static_cast<float>(value)));  // 0.2, as said
  };
  add("temperature", ours.temperature, usual.temperature);
  add("top_k", ours.top_k, usual.top_k);
  add("top_p", ours.top_p, usual.top_p);
  add("min_p", ours.min_p, usual.min_p);
  add("repetition_penalty", ours.repetition_penalty, usual.repetition_penalty);
  return params;
}

}  // namespace

void model_info(std::shared_ptr<http::Exchange> exchange, Service& service) {
  const ServiceOptions& options = service.options();
  respond_json(*exchange, {{"model_path", options.model_path},
                           {"served_model_name", options.served_model_name},
                           {"tokenizer_path", options.model_path},
                           {"is_generation", true},
                           {"preferred_sampling_params", sampling_of(options)},
                           {"weight_version", "default"},
                           {"has_image_understanding", false},
                           {"has_audio_understanding", false},
                           {"model_type", service.config().architecture},
                           {"architectures", {model::family_of(service.config().architecture, "").class_name}}});
}

void server_info(std::shared_ptr<http::Exchange> exchange, Service& service) {
  const ServiceOptions& options = service.options();
  const engine::EngineOptions& engine = service.engine_options();
  const double speed = service.metrics().tokens_per_second();
  ordered_json state = load_of(service, speed);
  state["last_gen_throughput"] = speed;
  state["load"] = state["num_total_tokens"];
  const char* const algorithm = engine.head ? "EAGLE3" : engine.make_drafter ? "NGRAM" : nullptr;
  if (algorithm) {
    state["speculative_num_draft_tokens"] = engine.speculative_num_draft_tokens;
    state["avg_spec_accept_length"] = service.stats().speculated.accept_length();
  }
  ordered_json info = {{"model_id", options.served_model_name},
                       {"model_path", options.model_path},
                       {"served_model_name", options.served_model_name},
                       {"tokenizer_path", options.model_path},
                       {"version", QUIRE_VERSION},
                       {"device", to_string(service.device())},
                       {"tp_size", 1},
                       {"dp_size", 1},
                       {"load_balance_method", "round_robin"},
                       {"disaggregation_mode", "null"},
                       {"weight_version", "default"},
                       {"context_length", engine.context},
                       {"max_total_tokens", engine.max_total_tokens},
                       {"max_total_num_tokens", engine.max_total_tokens},
                       {"max_prefill_tokens", engine.prefill_chunk},
                       {"chunked_prefill_size", engine.prefill_chunk},
                       {"max_running_requests", engine.max_running_requests},
                       {"max_queued_requests", engine.max_queued_requests},
                       {"page_size", engine.page_size},
                       {"kv_cache_dtype", to_string(engine.kv_type)},
                       {"disable_radix_cache", !engine.prefix_cache},
                       {"speculative_algorithm", algorithm ? ordered_json(algorithm) : ordered_json()},
                       {"speculative_num_draft_tokens", algorithm ? engine.speculative_num_draft_tokens : 0},
                       {"speculative_num_steps", engine.head ? engine.speculative_num_steps : 0},
                       {"speculative_eagle_topk", engine.head ? engine.speculative_eagle_topk : 0},
                       {"tool_call_parser", options.tool_call_parser},
                       {"internal_states", ordered_json::array({state})}};
  if (service.device() == Device::cuda) info["device_name"] = service.gpu_name();
  respond_json(*exchange, info);
}

void get_load(std::shared_ptr<http::Exchange> exchange, Service& service) {
  const engine::EngineStats stats = service.stats();
  const ordered_json load = {{"dp_rank", 0},
                             {"num_reqs", stats.running + stats.queued},
                             {"num_waiting_reqs", stats.queued},
                             {"num_tokens", pool_tokens(stats).used + stats.queued_tokens}};
  respond_json(*exchange, ordered_json::array({load}));
}

void loads(std::shared_ptr<http::Exchange> exchange, Service& service) {
  check_loads_query(exchange->request().query);
  const ordered_json load = load_of(service, service.metrics().tokens_per_second());
  respond_json(*exchange,
               {{"timestamp", utc_now()},
                {"version", QUIRE_VERSION},
                {"dp_rank_count", 1},
                {"loads", ordered_json::array({load})},
                {"aggregate",
                 {{"total_running_reqs", load["num_running_reqs"]},
                  {"total_waiting_reqs", load["num_waiting_reqs"]},
                  {"total_reqs", load["num_running_reqs"].get<int64_t>() + load["num_waiting_reqs"].get<int64_t>()},
                  {"total_tokens", load["num_total_tokens"]},
                  {"avg_token_usage", load["token_usage"]},
                  {"avg_throughput", load["gen_throughput"]}}}});
}

}  // namespace quire::serve
