#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/by_row.h"

namespace quire::ops {
namespace {

struct BlockScale {
  float scale;
  float inverse;  // 0: every q is 0, whatever x is
};

BlockScale scale_of_block(const float* x) {
  float largest = 0;
  for (int i = 0; i < kActivationBlock; ++i) {
    if (!std::isfinite(x[i])) return {std::numeric_limits<float>::quiet_NaN(), 0};
    largest = std::max(largest, std::abs(x[i]));
  }
  if (largest < 0x1p-119f) return {0, 0};
  return {largest / 127.0f, 127.0f / largest};
}

void quantise_block(const float* x, int64_t b, const QuantisedRow& out) {
  const BlockScale block = scale_of_block(x);
  out.scale[b] = block.scale;
  int8_t* q = out.q + b * kActivationBlock;
  int32_t* sums = out.sums + b * 2;
  sums[0] = sums[1] = 0;
  for (int i = 0; i < kActivationBlock; ++i) {
    const long nearest = block.inverse == 0 ? 0 : std::lrint(x[i] * block.inverse);  // ties to even, the default
    q[i] = static_cast<int8_t>(nearest);
    sums[i / 16] += q[i];
  }
}

}  // namespace

void ref::fill_block(const float* x, int64_t b, const ActivationRow& out) {
  if (out.q8.q) quantise_block(x, b, out.q8);
  if (!out.rest.q) return;
  float rest[kActivationBlock];
  for (int i = 0; i < kActivationBlock; ++i)
    rest[i] = x[i] - out.q8.scale[b] * static_cast<float>(out.q8.q[b * kActivationBlock + i]);
  quantise_block(rest, b, out.rest);
}

void ref::fill_row(const float* x, int64_t dim, const ActivationRow& out) {
  if (out.f32) std::copy_n(x, dim, out.f32);
  for (int64_t b = 0; b < dim / kActivationBlock; ++b) fill_block(x + b * kActivationBlock, b, out);
}

}  // namespace quire::ops
