// What parameters may be, and sampling in plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/check.h"
#include "ops/sample.h"
#include "ops/sample_weight.h"

namespace quire::ops {
namespace {

void check_between(const char* name, float value, float least, float most) {
  check(value >= least && value <= most, name, " must be in [", least, ", ", most, "], got ", value);
}

std::vector<float> adjusted_logits(const SampleRow& row, int32_t vocabulary) {
  const SamplingParams& params = *row.params;
  std::vector<float> logits(row.logits, row.logits + vocabulary);
  for (const float logit : logits) check(logit <= std::numeric_limits<float>::max(), "the logits hold NaN or infinity");
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  std::map<int32_t, int> in_text, in_generated;
  for (const int32_t id : row.prompt) ++in_text[id];
  for (const int32_t id : row.generated) ++in_text[id], ++in_generated[id];
  for (const auto& [id, count] : in_text) {
    float& logit = logits[id];
    const float penalty = params.repetition_penalty;
    logit = logit > 0 ? std::min(logit / penalty, std::numeric_limits<float>::max()) : logit * penalty;
  }
  for (const auto& [id, count] : in_generated)
    logits[id] -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  for (int32_t id = 0; row.mask && id < vocabulary; ++id)
    if (!(row.mask[id / 32] >> (id % 32) & 1)) logits[id] = -std::numeric_limits<float>::infinity();
  return logits;
}

std::vector<int32_t> by_likelihood(const std::vector<float>& logits) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return ids;
}

// Nothing stays behind the token at which the likeliest reach what is wanted; the likeliest itself always stays.
void keep_top_p(uint64_t wanted, const std::vector<int32_t>& ids, std::vector<uint64_t>& weights) {
  uint64_t reached = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint64_t weight = weights[ids[i]];
    if (i > 0 && reached >= wanted) weights[ids[i]] = 0;
    reached += weight;
  }
}

uint64_t sum_of(const std::vector<uint64_t>& weights) {
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

}  // namespace

void check_sampling(const SamplingParams& params, int32_t vocabulary) {
  check(std::isfinite(params.temperature) && params.temperature >= 0, "temperature must be at least 0, got ",
        params.temperature);
  check(params.top_k >= -1, "top_k must be -1, 0 or a count, got ", params.top_k);
  check(params.top_p > 0 && params.top_p <= 1, "top_p must be in (0, 1], got ", params.top_p);
  check_between("min_p", params.min_p, 0, 1);
  check(std::isfinite(params.repetition_penalty) && params.repetition_penalty > 0,
        "repetition_penalty must be above 0, got ", params.repetition_penalty);
  check_between("frequency_penalty", params.frequency_penalty, -2, 2);
  check_between("presence_penalty", params.presence_penalty, -2, 2);
  for (const auto& [token, bias] : params.logit_bias) {
    check(token >= 0 && token < vocabulary, "logit_bias names token ", token, ", outside the vocabulary of ",
          vocabulary);
    check_between("logit_bias", bias, -100, 100);
  }
}

int32_t ref::sample(const SampleRow& row, int32_t vocabulary) {
  const SamplingParams& params = *row.params;
  check_sampling(params, vocabulary);
  const std::vector<float> logits = adjusted_logits(row, vocabulary);
  const std::vector<int32_t> ids = by_likelihood(logits);
  check(!std::isinf(logits[ids[0]]), "no token is left");
  if (params.temperature == 0) return ids[0];

  const WeightScale scale = weight_scale(logits[ids[0]], params.temperature);
  std::vector<uint64_t> weights;
  for (const float logit : logits) weights.push_back(fixed_weight(logit, scale));
  if (params.top_k > 0)
    for (int32_t i = params.top_k; i < vocabulary; ++i) weights[ids[i]] = 0;
  if (params.top_p < 1) keep_top_p(top_p_weight(params.top_p, sum_of(weights)), ids, weights);
  for (uint64_t& weight : weights)
    if (weight < min_p_weight(params.min_p)) weight = 0;

  const uint64_t threshold =
      draw_threshold(random_bits(params.seed, static_cast<uint64_t>(row.position)), sum_of(weights));
  uint64_t sum = 0;
  int32_t token = 0;
  while ((sum += weights[token]) <= threshold) ++token;
  return token;
}

}  // namespace quire::ops
