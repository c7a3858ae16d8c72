// The passes of logit_scan.h on the compiler's own vectors, which become the registers of whatever the including source
// is compiled for.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/logit_scan.h"
#include "ops/logit_weight.h"

namespace quire::ops {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Double4 = double __attribute__((vector_size(32)));
using Bits4 = uint64_t __attribute__((vector_size(32)));

constexpr float kLargestFloat = 0x1.fffffep127f;
constexpr float kMinusInfinity = -__builtin_inff();

// Calls visit(block, its 64 logits); the last block is filled up with -inf, which is never largest and weighs nothing.
template <class Visit>
void for_each_block(const float* logits, int32_t count, Visit visit) {
  const int32_t whole = count / kLogitBlock;
  for (int32_t block = 0; block < whole; ++block) visit(block, logits + int64_t{block} * kLogitBlock);
  const int32_t rest = count % kLogitBlock;
  if (rest == 0) return;
  float last[kLogitBlock];
  for (float& logit : last) logit = kMinusInfinity;
  std::memcpy(last, logits + int64_t{whole} * kLogitBlock, static_cast<size_t>(rest) * sizeof(float));
  visit(whole, last);
}

template <class Vector>
[[gnu::always_inline]] inline void load(const float* p, Vector& x) {
  std::memcpy(&x, p, sizeof(x));
}

// Four lanes, which are one register everywhere: wider ones would wait for memory.
bool block_maxima(const float* logits, int32_t count, float* maxima) {
  Int4 sound = Int4{} - 1;
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    Float4 most, x;
    load(z, most);
    for (int i = 0; i < kLogitBlock; i += 4) {
      load(z + i, x);
      most = most > x ? most : x;
      sound &= x <= kLargestFloat;  // false for NaN too
    }
    const float a = most[0] > most[1] ? most[0] : most[1], b = most[2] > most[3] ? most[2] : most[3];
    maxima[block] = a > b ? a : b;
  });
  return (sound[0] & sound[1] & sound[2] & sound[3]) != 0;
}

[[gnu::always_inline]] inline void add_weights(const float* z, const WeightScale& scale, Double4& sum) {
  Float4 x;
  load(z, x);
  Double4 weights;
  two_to<Double4, Bits4>((__builtin_convertvector(x, Double4) - scale.top) * scale.per_logit, weights);
  sum += weights;
}

void block_sums(const float* logits, int32_t count, const WeightScale& scale, double* sums) {
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    Double4 low{}, high{};
    for (int i = 0; i < kLogitBlock; i += 8) {
      add_weights(z + i, scale, low);
      add_weights(z + i + 4, scale, high);
    }
    const Double4 both = low + high;
    sums[block] = (both[0] + both[2]) + (both[1] + both[3]);
  });
}

}  // namespace
}  // namespace quire::ops
