#include "engine/prompt_results.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace quire::engine {
namespace {

PositionRange wanted_rows(const Request& request, int32_t prompt) {
  if (request.pooling == Pooling::mean) return {0, prompt};
  if (request.pooling == Pooling::last) return {prompt - 1, prompt};
  if (request.prompt_logprobs_from >= 0) return {std::max(request.prompt_logprobs_from - 1, 0), prompt - 1};
  return {};
}

}  // namespace

TokenLogprob as_logprob(ops::Sampled sampled) {
  return {.token = sampled.token,
          .logprob = sampled.logprob,
          .top = std::move(sampled.top),
          .wanted = std::move(sampled.wanted)};
}

PromptResults::PromptResults(const Request& request, std::span<const int32_t> prompt)
    : missing_(wanted_rows(request, static_cast<int32_t>(prompt.size()))), pools_(request.pooling != Pooling::none) {
  if (!pools_ && request.prompt_logprobs_from == 0) logprobs_.push_back({.token = prompt[0]});
}

void PromptResults::add(ops::Sampled scored) {
  check(!pools_ && !missing_.empty(), "a score that nobody waits for");
  logprobs_.push_back(as_logprob(std::move(scored)));
  ++missing_.begin;
}

void PromptResults::add_row(std::span<const float> row) {
  check(pools_ && !missing_.empty(), "a row that nobody waits for");
  check(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }),
        "a row to be pooled holds NaN or infinity");
  sum_.resize(row.size());
  for (size_t i = 0; i < row.size(); ++i) sum_[i] += static_cast<double>(row[i]);
  ++missing_.begin;
}

std::vector<TokenLogprob> PromptResults::take_logprobs() {
  check(missing_.empty(), missing_.count(), " rows of the prompt were not scored");
  return std::exchange(logprobs_, {});
}

// The sum has the direction of the mean, and the length is made 1 in any case.
std::vector<float> PromptResults::embedding() const {
  check(!pools_ || missing_.empty(), missing_.count(), " rows of the prompt were not pooled");
  double square = 0;
  for (const double x : sum_) square += x * x;
  const double scale = square > 0 ? 1 / std::sqrt(square) : 0;
  std::vector<float> out;
  out.reserve(sum_.size());
  for (const double x : sum_) out.push_back(static_cast<float>(x * scale));
  return out;
}

}  // namespace quire::engine
