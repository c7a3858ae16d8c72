#include <algorithm>

#include "ops/quantise_block_ref.h"
#include "ops/rms_scale_ref.h"
#include "ops/row_kernels.h"

namespace quire::ops {

void ref::rms_norm_row(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out) {
  const float scale = rms_scale(x, dim, eps);
  for (int64_t first = 0; first < dim; first += kActivationBlock) {
    float normed[kActivationBlock];
    const int64_t count = std::min<int64_t>(kActivationBlock, dim - first);
    for (int64_t i = 0; i < count; ++i) normed[i] = (x[first + i] * scale) * weight[first + i];
    if (out.f32) std::copy_n(normed, count, out.f32 + first);
    if (!out.q) continue;
    const int64_t block = first / kActivationBlock;
    quantise_block(normed, out.q + first, out.scale + block, out.sums + block * 2);
  }
}

}  // namespace quire::ops
