#include "ops/quantise_block_avx2.h"
#include "ops/rms_scale_avx2.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

template <bool f32, bool q8>
void norm_blocks(const float* x, const float* weight, float scale, int64_t blocks, const ActivationRow& out) {
  const __m256 factor = _mm256_set1_ps(scale);
  for (int64_t block = 0; block < blocks; ++block) {
    __m256 normed[4];
    for (int i = 0; i < 4; ++i) {
      const int64_t at = block * kActivationBlock + i * 8;
      normed[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + at), factor), _mm256_loadu_ps(weight + at));
      if (f32) _mm256_storeu_ps(out.f32 + at, normed[i]);
    }
    if (q8) avx2::quantise_block(normed, out.q + block * kActivationBlock, out.scale + block, out.sums + block * 2);
  }
}

}  // namespace

void avx2::rms_norm_row(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out) {
  const float scale = rms_scale(x, dim, eps);
  const int64_t blocks = dim / kActivationBlock;
  if (!out.f32) return norm_blocks<false, true>(x, weight, scale, blocks, out);
  if (out.q) return norm_blocks<true, true>(x, weight, scale, blocks, out);
  norm_blocks<true, false>(x, weight, scale, blocks, out);
  for (int64_t i = blocks * kActivationBlock; i < dim; ++i) out.f32[i] = (x[i] * scale) * weight[i];
}

}  // namespace quire::ops
