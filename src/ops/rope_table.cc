#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "ops/rope.h"

namespace quire::ops {
namespace {

using Kind = RopeScaling::Kind;

bool positive(double value) { return std::isfinite(value) && value > 0; }

void check_scaling(const RopeScaling& scaling) {
  if (scaling.kind == Kind::none) return;
  check(positive(scaling.factor), "rope scaling with a factor of ", scaling.factor);
  if (scaling.kind == Kind::linear) return;
  check(positive(scaling.original_context), "rope scaling of an original context of ", scaling.original_context);
  if (scaling.kind == Kind::llama3)
    check(positive(scaling.low_frequency_factor) && positive(scaling.high_frequency_factor) &&
              scaling.low_frequency_factor < scaling.high_frequency_factor,
          "rope scaling between frequency factors ", scaling.low_frequency_factor, " and ",
          scaling.high_frequency_factor);
  if (scaling.kind == Kind::yarn) {
    check(positive(scaling.beta_fast) && positive(scaling.beta_slow) && scaling.beta_slow <= scaling.beta_fast,
          "rope scaling between beta fast ", scaling.beta_fast, " and beta slow ", scaling.beta_slow);
    check(scaling.attention_factor == 0 || positive(scaling.attention_factor),
          "rope scaling with an attention factor of ", scaling.attention_factor);
  }
}

// Waves that fit the original context often enough stay, those that fit it hardly once are stretched by the factor, and
// those between are mixed by how often they fit.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double turns = scaling.original_context * frequency / (2 * std::numbers::pi);
  const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
  const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

// yarn's ramp: the pair at and before which frequencies stay, and the one from which on they are divided.
struct Ramp {
  double first, last;
};

Ramp yarn_ramp(int32_t rotary, double theta, const RopeScaling& scaling) {
  // The pair, as a real number, whose wave turns this often within the original context.
  const auto pair_turning = [&](double turns) {
    return rotary * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double first = std::max(std::floor(pair_turning(scaling.beta_fast)), 0.0);
  const double last = std::min(std::ceil(pair_turning(scaling.beta_slow)), rotary - 1.0);
  return {first, first == last ? last + 0.001 : last};
}

double yarn_frequency(double frequency, int32_t pair, const Ramp& ramp, double factor) {
  const double divided = std::clamp((pair - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
  return (1 - divided) * frequency + divided * frequency / factor;
}

double yarn_magnitude(const RopeScaling& scaling) {
  if (scaling.attention_factor != 0) return scaling.attention_factor;
  return scaling.factor <= 1 ? 1 : 0.1 * std::log(scaling.factor) + 1;
}

double scaled(double frequency, int32_t pair, const RopeScaling& scaling, const Ramp& ramp) {
  switch (scaling.kind) {
    case Kind::none:
      return frequency;
    case Kind::linear:
      return frequency / scaling.factor;
    case Kind::llama3:
      return llama3_frequency(frequency, scaling);
    case Kind::yarn:
      return yarn_frequency(frequency, pair, ramp, scaling.factor);
  }
  throw CheckError(cat("rope scaling of kind ", static_cast<int>(scaling.kind), " is not known"));
}

}  // namespace

RopeTable rope_table(int32_t rotary, double theta, const RopeScaling& scaling, const float* factors) {
  check(rotary > 0 && rotary % 2 == 0, "rope turns pairs of dims, which ", rotary, " dims are not");
  check(positive(theta), "rope with a theta of ", theta);
  check(scaling.kind != Kind::yarn || theta > 1, "yarn needs a theta above 1, not ", theta);
  check_scaling(scaling);
  const Ramp ramp = scaling.kind == Kind::yarn ? yarn_ramp(rotary, theta, scaling) : Ramp{};
  RopeTable table;
  for (int32_t pair = 0; pair < rotary / 2; ++pair) {
    const double frequency = std::pow(theta, -2.0 * pair / rotary);
    const double divisor = factors ? factors[pair] : 1;
    check(positive(divisor), "rope factor ", pair, " is ", divisor);
    table.inverse_frequency.push_back(static_cast<float>(scaled(frequency, pair, scaling, ramp) / divisor));
  }
  if (scaling.kind == Kind::yarn) table.magnitude = static_cast<float>(yarn_magnitude(scaling));
  return table;
}

}  // namespace quire::ops
