#include <cstring>

#include "ops/quantise_block_avx2.h"
#include "ops/row_kernels.h"

namespace quire::ops {

void avx2::fill_row(const float* x, int64_t dim, const ActivationRow& out) {
  if (out.f32) std::memcpy(out.f32, x, static_cast<size_t>(dim) * sizeof(float));
  if (!out.q) return;
  for (int64_t block = 0; block < dim / kActivationBlock; ++block) {
    const float* from = x + block * kActivationBlock;
    const __m256 values[4] = {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8), _mm256_loadu_ps(from + 16),
                              _mm256_loadu_ps(from + 24)};
    quantise_block(values, out.q + block * kActivationBlock, out.scale + block, out.sums + block * 2);
  }
}

}  // namespace quire::ops
