#include <algorithm>
#include <cmath>

#include "ops/by_row.h"

namespace quire::ops {

float ref::rms_scale(const float* x, int64_t dim, float eps) {
  float lane[kSquareLanes] = {};
  for (int64_t i = 0; i < dim; ++i) lane[i % kSquareLanes] = std::fma(x[i], x[i], lane[i % kSquareLanes]);
  for (int64_t half = kSquareLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  return 1.0f / std::sqrt(lane[0] / static_cast<float>(dim) + eps);
}

void ref::rms_norm_row(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out) {
  const float scale = rms_scale(x, dim, eps);
  for (int64_t first = 0; first < dim; first += kActivationBlock) {
    float normed[kActivationBlock];
    const int64_t count = std::min<int64_t>(kActivationBlock, dim - first);
    for (int64_t i = 0; i < count; ++i) normed[i] = (x[first + i] * scale) * weight[first + i];
    if (out.f32) std::copy_n(normed, count, out.f32 + first);
    fill_block(normed, first / kActivationBlock, out);
  }
}

}  // namespace quire::ops
