// One block of 32 activations in 8 bits: what activations.h says, in plain loops.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/activations.h"

namespace quire::ops::ref {

struct BlockScale {
  float scale;
  float inverse;  // 0: every q is 0, whatever x is
};

inline BlockScale scale_of_block(const float* x) {
  float largest = 0;
  for (int i = 0; i < kActivationBlock; ++i) {
    if (!std::isfinite(x[i])) return {std::numeric_limits<float>::quiet_NaN(), 0};
    largest = std::max(largest, std::abs(x[i]));
  }
  if (largest < 0x1p-119f) return {0, 0};
  return {largest / 127.0f, 127.0f / largest};
}

inline void quantise_block(const float* x, int8_t* q, float* scale, int32_t* sums) {
  const BlockScale block = scale_of_block(x);
  *scale = block.scale;
  sums[0] = sums[1] = 0;
  for (int i = 0; i < kActivationBlock; ++i) {
    const long nearest = block.inverse == 0 ? 0 : std::lrint(x[i] * block.inverse);  // ties to even, the default
    q[i] = static_cast<int8_t>(nearest);
    sums[i / 16] += q[i];
  }
}

}  // namespace quire::ops::ref
