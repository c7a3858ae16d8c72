#include "sampling_options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <random>

#include "base/check.h"

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

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplingOptions& options, float default_temperature) {
  ops::SamplingParams& params = options.params;
  params.temperature = default_temperature;
  app.add_option("--temperature", params.temperature, "0: always the likeliest token; 1: as the model says")
      ->capture_default_str();
  app.add_option("--top-k", params.top_k, "draw from the K likeliest tokens; 0: from all")->capture_default_str();
  app.add_option("--top-p", params.top_p, "draw from the likeliest tokens that together have this probability")
      ->capture_default_str();
  app.add_option("--min-p", params.min_p, "leave out tokens less likely than this part of the likeliest")
      ->capture_default_str();
  app.add_option("--repetition-penalty", params.repetition_penalty,
                 "above 1: tokens already in the text become unlikely")
      ->capture_default_str();
  app.add_option("--frequency-penalty", params.frequency_penalty, "taken off for each time a token was generated")
      ->capture_default_str();
  app.add_option("--presence-penalty", params.presence_penalty, "taken off once for a token that was generated")
      ->capture_default_str();
  app.add_option("--logit-bias", options.logit_bias, "ID:VALUE, added to a token's logit; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "the same seed draws the same tokens; default: another each time");
}

ops::SamplingParams sampling_params(const SamplingOptions& options) {
  ops::SamplingParams params = options.params;
  for (const std::string& text : options.logit_bias) params.logit_bias.push_back(bias_from(text));
  params.seed = options.seed ? *options.seed : random_seed();
  return params;
}

}  // namespace quire
