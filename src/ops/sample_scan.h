// The passes of sampling over all logits of a vocabulary, in blocks of 64: the largest of each block, which lets later
// work skip almost all blocks, and the sum of each block's weights, in fixed point for draws and in double for
// logprobs.
//
// Every number is the same on every instruction set. Sums in double have 8 lanes (element i in lane i % 8, ascending),
// which then fold by halves. The loops are on the compiler's own vectors, which become the registers of whatever the
// including source is compiled for.
#pragma once
#include <cstdint>
#include <cstring>

#include "base/cpu_features.h"
#include "ops/sample_weight.h"

namespace quire::ops {

inline constexpr int32_t kLogitBlock = 64;
constexpr int32_t logit_blocks(int32_t vocabulary) { return (vocabulary + kLogitBlock - 1) / kLogitBlock; }

struct LogitScan {
  // Fills maxima [logit_blocks(count)]; returns whether all logits are numbers below infinity.
  bool (*maxima)(const float* logits, int32_t count, float* maxima);
  // Fill sums [logit_blocks(count)].
  void (*fixed_sums)(const float* logits, int32_t count, const WeightScale& scale, uint64_t* sums);
  void (*sums)(const float* logits, int32_t count, const WeightScale& scale, double* sums);
};
LogitScan logit_scan(Isa isa);
LogitScan avx2_logit_scan();  // only where the machine has AVX2

namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));
using Bits4 = uint64_t __attribute__((vector_size(32)));

// Calls visit(block, its 64 logits); the last block is filled up with -inf, which is never largest and weighs nothing.
template <class Visit>
void for_each_block(const float* logits, int32_t count, Visit visit) {
  const int32_t whole = count / kLogitBlock;
  for (int32_t block = 0; block < whole; ++block) visit(block, logits + int64_t{block} * kLogitBlock);
  const int32_t rest = count % kLogitBlock;
  if (rest == 0) return;
  float last[kLogitBlock];
  for (float& logit : last) logit = -__builtin_inff();
  std::memcpy(last, logits + int64_t{whole} * kLogitBlock, static_cast<size_t>(rest) * sizeof(float));
  visit(whole, last);
}

// Four lanes, which are one register everywhere: wider ones would wait for memory.
inline bool block_maxima(const float* logits, int32_t count, float* maxima) {
  constexpr float kLargestFloat = 0x1.fffffep127f;
  Int4 sound = Int4{} - 1;
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    Float4 most, x;
    std::memcpy(&most, z, sizeof(most));
    for (int i = 0; i < kLogitBlock; i += 4) {
      std::memcpy(&x, z + i, sizeof(x));
      most = most > x ? most : x;
      sound &= x <= kLargestFloat;  // false for NaN too
    }
    const float a = most[0] > most[1] ? most[0] : most[1], b = most[2] > most[3] ? most[2] : most[3];
    maxima[block] = a > b ? a : b;
  });
  return (sound[0] & sound[1] & sound[2] & sound[3]) != 0;
}

[[gnu::always_inline]] inline void four_weights(const float* z, const WeightScale& scale, Double4& weights) {
  Float4 x;
  std::memcpy(&x, z, sizeof(x));
  two_to<Double4, Bits4>((__builtin_convertvector(x, Double4) - scale.top) * scale.per_logit, weights);
}

inline void block_fixed_sums(const float* logits, int32_t count, const WeightScale& scale, uint64_t* sums) {
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    Bits4 low{}, high{};
    Double4 weights;
    for (int i = 0; i < kLogitBlock; i += 8) {
      four_weights(z + i, scale, weights);
      add_fixed(weights, low);
      four_weights(z + i + 4, scale, weights);
      add_fixed(weights, high);
    }
    const Bits4 both = low + high;
    sums[block] = both[0] + both[1] + both[2] + both[3] - kFixedZero * kLogitBlock;  // modulo 2^64, which is exact
  });
}

inline void block_sums(const float* logits, int32_t count, const WeightScale& scale, double* sums) {
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    Double4 low{}, high{};
    Double4 weights;
    for (int i = 0; i < kLogitBlock; i += 8) {
      four_weights(z + i, scale, weights);
      low += weights;
      four_weights(z + i + 4, scale, weights);
      high += weights;
    }
    const Double4 both = low + high;
    sums[block] = (both[0] + both[2]) + (both[1] + both[3]);
  });
}

}  // namespace
}  // namespace quire::ops
