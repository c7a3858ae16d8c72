#include <algorithm>

#include "ops/quantise_block_ref.h"
#include "ops/row_kernels.h"

namespace quire::ops {

void ref::fill_row(const float* x, int64_t dim, const ActivationRow& out) {
  if (out.f32) std::copy_n(x, dim, out.f32);
  if (!out.q) return;
  for (int64_t block = 0; block < dim / kActivationBlock; ++block) {
    const int64_t first = block * kActivationBlock;
    quantise_block(x + first, out.q + first, out.scale + block, out.sums + block * 2);
  }
}

}  // namespace quire::ops
