#include <cmath>

#include "base/check.h"
#include "ops/sample.h"

namespace quire::ops {
namespace {

void check_between(const char* name, float value, float least, float most) {
  check(value >= least && value <= most, name, " must be in [", least, ", ", most, "], got ", value);
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

}  // namespace quire::ops
