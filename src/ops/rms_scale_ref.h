// 1 / sqrt(mean(x^2) + eps), the factor of every norm by root mean square.
//
// Squares are summed by fused multiply-add in 16 lanes, element i in lane i % 16, ascending; then the lanes fold by
// halves: lane i takes lane i + 8, then i + 4, i + 2, i + 1. Quotients and the root are rounded exactly.
#pragma once
#include <cmath>
#include <cstdint>

namespace quire::ops::ref {

inline float rms_scale(const float* x, int64_t dim, float eps) {
  float lane[16] = {};
  for (int64_t i = 0; i < dim; ++i) lane[i % 16] = std::fma(x[i], x[i], lane[i % 16]);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return 1.0f / std::sqrt(lane[0] / static_cast<float>(dim) + eps);
}

}  // namespace quire::ops::ref
