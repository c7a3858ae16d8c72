#include "serve/request_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/strict_json.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Where a caller may name a field in two ways.
std::optional<int64_t> either(Fields& fields, std::string_view one, std::string_view other) {
  const auto first = fields.integer(one, 0, kMostTokens), second = fields.integer(other, 0, kMostTokens);
  return first ? first : second;
}

std::pair<int32_t, float> bias_of(const std::string& key, const ordered_json& value, const std::string& path) {
  int32_t token = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
  const bool is_id = error == std::errc() && end == key.data() + key.size() && token >= 0;
  if (!is_id || key != std::to_string(token))  // "05" and "5" would be one token twice
    throw ApiError(400, cat(path, ": expected token ids as keys, got ", in_quotes(key, 40)), path);
  if (!value.is_number() || value.get<double>() < -100 || value.get<double>() > 100)
    throw ApiError(400, cat(path, ".", token, ": expected a number from -100 to 100"), path);
  return {token, value.get<float>()};
}

void read_logit_bias(Fields& fields, ops::SamplingParams& sampling) {
  const ordered_json* bias = fields.raw("logit_bias");
  if (!bias) return;
  const std::string path = fields.path_of("logit_bias");
  if (!bias->is_object()) throw ApiError(400, cat(path, ": expected an object of token ids and numbers"), path);
  for (const auto& [key, value] : bias->items())
    if (!value.is_null()) sampling.logit_bias.push_back(bias_of(key, value, path));
}

}  // namespace

ordered_json body_of(const http::Request& request) {
  if (request.body.empty()) throw ApiError(400, "the body is empty; a JSON object is expected");
  try {
    return parse_strict_ordered_json(request.body, kBodyLimits);
  } catch (const JsonError& error) {
    throw ApiError(400, cat("the body cannot be used: ", error.what()));
  }
}

void read_sampling(Fields& fields, const Service& service, engine::Request& request) {
  ops::SamplingParams& sampling = request.sampling;
  sampling = service.options().sampling;
  const auto read = [&](float& param, const char* name, double least, double most) {
    if (const auto given = fields.number(name, least, most)) param = static_cast<float>(*given);
  };
  read(sampling.temperature, "temperature", 0, 100);
  // 0 leaves the likeliest token alone, as everything that is small enough does.
  constexpr float kSmallTopP = 1e-9f;
  read(sampling.top_p, "top_p", 0, 1);
  sampling.top_p = std::max(sampling.top_p, kSmallTopP);
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, kMostTokens).value_or(sampling.top_k));
  read(sampling.min_p, "min_p", 0, 1);
  read(sampling.frequency_penalty, "frequency_penalty", -2, 2);
  read(sampling.presence_penalty, "presence_penalty", -2, 2);
  read(sampling.repetition_penalty, "repetition_penalty", 0.01, 100);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  sampling.seed = seed ? static_cast<uint64_t>(*seed) : random_seed();
  read_logit_bias(fields, sampling);
  for (const auto& [token, bias] : sampling.logit_bias)
    check_token_ids({&token, 1}, service, fields.path_of("logit_bias"));

  request.min_new_tokens = static_cast<int32_t>(either(fields, "min_tokens", "min_new_tokens").value_or(0));
  request.stop_ids = fields.token_ids("stop_token_ids", kMostStops);
  check_token_ids(request.stop_ids, service, fields.path_of("stop_token_ids"));
  if (fields.boolean("ignore_eos").value_or(false)) return;
  const std::vector<int32_t>& ends = service.tokenizer().vocabulary().end_ids;
  request.stop_ids.insert(request.stop_ids.end(), ends.begin(), ends.end());
}

int32_t read_priority(Fields& fields, const Caller& caller) {
  const int64_t priority = fields.integer("priority", -engine::kMostPriority, engine::kMostPriority).value_or(0);
  if (priority > 0) check_may_manage(caller, "a priority above 0", fields.path_of("priority"));
  return static_cast<int32_t>(priority);
}

std::vector<std::string> read_stops(Fields& fields) {
  std::vector<std::string> stops = fields.strings("stop", kMostStops, kMostStopBytes, Fields::Nulls::skipped);
  if (std::any_of(stops.begin(), stops.end(), [](const std::string& stop) { return stop.empty(); }))
    refuse(fields.path_of("stop"), "a stop text is empty");
  return stops;
}

}  // namespace quire::serve
