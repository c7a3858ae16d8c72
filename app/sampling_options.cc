#include "sampling_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <random>

#include "base/check.h"
#include "model/advised_sampling.h"

namespace quire {
namespace {

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

std::pair<int32_t, float> bias_from(std::string_view text) {
  const size_t colon = std::min(text.find(':'), text.size());
  std::pair<int32_t, float> bias;
  const bool read = colon < text.size() && read_number(text.substr(0, colon), bias.first) &&
                    read_number(text.substr(colon + 1), bias.second);
  check(read, "--logit-bias ", text, ": a token id, a colon and a number are wanted, like 198:-2.5");
  return bias;
}

// CLI11 reads -1 as the largest number there is, and so what is larger than that.
std::string refusal_of_seed(const std::string& text) {
  uint64_t seed = 0;
  return read_number(std::string_view(text), seed) ? "" : "no seed";
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplingOptions& options, const std::string& default_temperature) {
  app.add_option("--temperature", options.temperature,
                 cat("0: always the likeliest token; 1: as the model says; default: ", default_temperature));
  app.add_option("--top-k", options.top_k, "draw from the K likeliest tokens; 0: from all");
  app.add_option("--top-p", options.top_p, "draw from the likeliest tokens that together have this probability");
  app.add_option("--min-p", options.min_p, "leave out tokens less likely than this part of the likeliest");
  app.add_option("--repetition-penalty", options.repetition_penalty,
                 "above 1: tokens already in the text become unlikely");
  app.add_option("--frequency-penalty", options.frequency_penalty, "taken off for each time a token was generated");
  app.add_option("--presence-penalty", options.presence_penalty, "taken off once for a token that was generated");
  app.add_option("--logit-bias", options.logit_bias, "ID:VALUE, added to a token's logit; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "the same seed draws the same tokens; default: another each time")
      ->check(seed_range());
}

CLI::Validator seed_range() {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return {[](const std::string& text) { return refusal_of_seed(text); }, cat("UINT in [0 - ", kMost, "]")};
}

ops::SamplingParams sampling_params(const SamplingOptions& options, const ops::SamplingParams& defaults) {
  ops::SamplingParams params = defaults;
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_k = options.top_k.value_or(params.top_k);
  params.top_p = options.top_p.value_or(params.top_p);
  params.min_p = options.min_p.value_or(params.min_p);
  params.repetition_penalty = options.repetition_penalty.value_or(params.repetition_penalty);
  params.frequency_penalty = options.frequency_penalty.value_or(params.frequency_penalty);
  params.presence_penalty = options.presence_penalty.value_or(params.presence_penalty);
  for (const std::string& text : options.logit_bias) params.logit_bias.push_back(bias_from(text));
  params.seed = options.seed ? *options.seed : random_seed();
  return params;
}

void add_sampling_defaults(CLI::App& app, SamplingDefaults& defaults) {
  app.add_option("--sampling-defaults", defaults.from,
                 "how tokens are drawn where nobody says: as the model's makers advise, or as OpenAI does "
                 "(temperature 1, top-p 1)")
      ->capture_default_str()
      ->check(CLI::IsMember({"model", "openai"}));
}

ops::SamplingParams default_sampling(const SamplingDefaults& defaults, const std::string& model_path,
                                     const ops::SamplingParams& unadvised) {
  return defaults.from == "openai" ? ops::SamplingParams() : model::advised_sampling(model_path, unadvised);
}

}  // namespace quire
