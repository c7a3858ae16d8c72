// The two passes over all logits of a vocabulary, in blocks of 64: the largest of each block, and the sum of each
// block's weights.
//
//   weight(z) = 2^((z - top) * per_logit)       1 at the top; exactly 0 at -inf and below 2^-1000
//
// The maxima let later work skip almost all blocks. Every number is the same on every instruction set: weights are
// products and sums in double, rounded one by one; a block's are summed in 8 lanes (element i in lane i % 8,
// ascending), which then fold by halves.
#pragma once
#include <cstdint>

#include "base/cpu_features.h"

namespace quire::ops {

inline constexpr int32_t kLogitBlock = 64;
constexpr int32_t logit_blocks(int32_t vocabulary) { return (vocabulary + kLogitBlock - 1) / kLogitBlock; }

struct WeightScale {
  double top;        // the largest logit
  double per_logit;  // log2(e) / temperature
};

// Fills maxima [logit_blocks(count)]; returns whether all logits are numbers below infinity.
using BlockMaximaFn = bool(const float* logits, int32_t count, float* maxima);
// Fills sums [logit_blocks(count)].
using BlockSumsFn = void(const float* logits, int32_t count, const WeightScale& scale, double* sums);

struct LogitScan {
  BlockMaximaFn* maxima;
  BlockSumsFn* sums;
};
LogitScan plain_logit_scan();
LogitScan avx2_logit_scan();  // only where the machine has AVX2

inline LogitScan logit_scan([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx2) return avx2_logit_scan();
#endif
  return plain_logit_scan();
}

}  // namespace quire::ops
