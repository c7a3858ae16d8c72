// Sampling's passes over all logits, compiled once for each instruction set, QUIRE_ISA being its namespace.
//
// Sums in double have 8 lanes (element i in lane i % 8, ascending), which then fold by halves. The loops are on the
// compiler's own vectors, which become the registers of the instruction set.
#include <cstring>

#include "ops/sample_weight.h"

namespace quire::ops {
namespace {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
#if defined(__AVX512F__)
constexpr int kScanLanes = 8;
#else
constexpr int kScanLanes = 4;
#endif
using ScanFloats = float __attribute__((vector_size(kScanLanes * 4)));
using ScanDoubles = double __attribute__((vector_size(kScanLanes * 8)));
using ScanBits = uint64_t __attribute__((vector_size(kScanLanes * 8)));

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
bool block_maxima(const float* logits, int32_t count, float* maxima) {
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

// A block's 64 exponents, each given to add(exponents, sum) with the sum of its lane: element i in lane i % 8,
// ascending.
template <class Vector, class Lane, class Add>
[[gnu::always_inline]] inline void sum_lanes(const float* z, const WeightScale& scale, Lane (&lanes)[8], Add add) {
  Vector sums[8 / kScanLanes] = {};
  for (int i = 0; i < kLogitBlock; i += 8)
    for (int part = 0; part < 8 / kScanLanes; ++part) {
      ScanFloats logits;
      std::memcpy(&logits, z + i + part * kScanLanes, sizeof(logits));
      const ScanDoubles exponents = (__builtin_convertvector(logits, ScanDoubles) - scale.top) * scale.per_logit;
      add(exponents, sums[part]);
    }
  std::memcpy(lanes, sums, sizeof(lanes));
}

void block_fixed_sums(const float* logits, int32_t count, const float* maxima, const WeightScale& scale,
                      uint64_t* sums) {
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    sums[block] = 0;
    if (weight_exponent(maxima[block], scale) < -42) return;  // far enough below half a unit
    uint64_t lanes[8];
    sum_lanes<ScanBits>(z, scale, lanes, [](const ScanDoubles& exponents, ScanBits& sum) {
      ScanBits weights;
      fixed_two_to(exponents, weights);
      sum += weights;
    });
    for (const uint64_t lane : lanes) sums[block] += lane;
    sums[block] -= kFixedZero * kLogitBlock;  // modulo 2^64, which is exact
  });
}

void block_sums(const float* logits, int32_t count, const WeightScale& scale, double* sums) {
  for_each_block(logits, count, [&](int32_t block, const float* z) {
    double lanes[8];
    sum_lanes<ScanDoubles>(z, scale, lanes, [](const ScanDoubles& exponents, ScanDoubles& sum) {
      ScanDoubles weights;
      two_to<ScanDoubles, ScanBits>(exponents, weights);
      sum += weights;
    });
    for (int lane = 0; lane < 4; ++lane) lanes[lane] += lanes[lane + 4];
    sums[block] = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  });
}

}  // namespace

LogitScan QUIRE_ISA::logit_scan() { return {block_maxima, block_fixed_sums, block_sums}; }

}  // namespace quire::ops
