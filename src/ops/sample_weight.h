// The arithmetic of a draw: every number here has the same bits on every machine, so a GPU that repeats it draws the
// same tokens. Doubles are multiplied, added and divided, each result rounded by itself: whoever includes this, for a
// GPU too, is compiled without contraction. All else is integers, whose sums have no order. Below it the passes of
// sampling over all logits, which are compiled for several instruction sets.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/cpu_features.h"

namespace quire::ops {

inline constexpr uint64_t kWeightOne = uint64_t{1} << 40;  // of the largest logit, in fixed point
inline constexpr int32_t kMostWeights = 1 << 23;           // as many as sum without overflow

struct WeightScale {
  double top;        // the largest logit
  double per_logit;  // log2(e) / temperature
};

namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): a random function of counter and key without state, made of ten
// rounds of 32-bit multiplications.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// The 64 random bits of (seed, position): words 0 and 1 for counter (position, 0) and key seed, low halves first.
constexpr uint64_t random_bits(uint64_t seed, uint64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto words = philox4x32({low(position), high(position), 0, 0}, {low(seed), high(seed)});
  return uint64_t{words[0]} << 32 | words[1];
}

inline WeightScale weight_scale(float top, float temperature) { return {top, std::numbers::log2e / temperature}; }

// result = 2^x for x of 0 or less, relative error below 1e-14; exactly 0 below -1000. Real is double or a vector of
// them, Bits the same width in unsigned integers. By reference, because vectors are passed by value in other ways under
// other flags.
template <class Real, class Bits>
[[gnu::always_inline]] constexpr void two_to(const Real& x, Real& result) {
  // Adding this leaves no bits behind the point and the whole number in the low bits of the sum.
  constexpr double kWholeNumbers = 0x1.8p52;
  const Real shifted = x + kWholeNumbers;
  const Real f = x - (shifted - kWholeNumbers);  // in [-1/2, 1/2]
  // 2^f by its series, whose coefficients are ln(2)^n / n!: even and odd powers apart, two chains that run side by
  // side.
  const Real f2 = f * f;
  Real even = f2 * 7.054911620801121e-09 + 1.3215486790144305e-06;
  Real odd = f2 * 4.44553827187081e-10 + 1.0178086009239696e-07;
  even = even * f2 + 1.5403530393381606e-04;
  odd = odd * f2 + 1.5252733804059838e-05;
  even = even * f2 + 9.618129107628477e-03;
  odd = odd * f2 + 1.3333558146428441e-03;
  even = even * f2 + 2.402265069591007e-01;
  odd = odd * f2 + 5.5504108664821576e-02;
  even = even * f2 + 1.0;
  odd = odd * f2 + 6.931471805599453e-01;
  const Real series = odd * f + even;
  // The whole number moves into the exponent.
  const Bits bits = __builtin_bit_cast(Bits, series) + (__builtin_bit_cast(Bits, shifted) << 52);
  const Real power = __builtin_bit_cast(Real, bits);
  result = x < -1000.0 ? Real{} : power;
}

// 2^x rounded to a multiple of 2^-40, ties to even: a whole number behind kFixedZero, the bits of 2^12, to which it is
// added because that leaves no smaller bits.
constexpr uint64_t kFixedZero = 0x40B0000000000000;
template <class Real, class Bits>
[[gnu::always_inline]] constexpr void fixed_two_to(const Real& x, Bits& result) {
  Real power{};
  two_to<Real, Bits>(x, power);
  power += 0x1p12;
  result = __builtin_bit_cast(Bits, power);
}

constexpr double weight_exponent(float logit, const WeightScale& scale) {
  return (static_cast<double>(logit) - scale.top) * scale.per_logit;
}

// The weight of a token: 2^((logit - top) * per_logit), kWeightOne at the top.
constexpr uint64_t fixed_weight(float logit, const WeightScale& scale) {
  uint64_t bits = 0;
  fixed_two_to(weight_exponent(logit, scale), bits);
  return bits - kFixedZero;
}

// The weight that the likeliest must reach together: ceil(p * total), p < 1 being cut off behind its 64th bit.
constexpr uint64_t top_p_weight(float top_p, uint64_t total) {
  const auto fraction = static_cast<uint64_t>(static_cast<double>(top_p) * 0x1p64);
  const auto product = static_cast<unsigned __int128>(fraction) * total;
  return static_cast<uint64_t>(product >> 64) + (static_cast<uint64_t>(product) != 0);
}

// The least weight that stays.
inline uint64_t min_p_weight(float min_p) {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(min_p) * 0x1p40));
}

// In [0, total): the token is the first at which the sum of weights is above it.
constexpr uint64_t draw_threshold(uint64_t random, uint64_t total) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(random) * total >> 64);
}

}  // namespace

// The passes go by blocks of 64: the largest of each block, which lets later work skip almost all blocks, and the sum
// of each block's weights, in fixed point for draws and in double for logprobs. Every number is the same on every
// instruction set.
inline constexpr int32_t kLogitBlock = 64;
constexpr int32_t logit_blocks(int32_t vocabulary) { return (vocabulary + kLogitBlock - 1) / kLogitBlock; }

struct LogitScan {
  // Fills maxima [logit_blocks(count)]; returns whether all logits are numbers below infinity.
  bool (*maxima)(const float* logits, int32_t count, float* maxima);
  // Fills sums [logit_blocks(count)] of fixed_weight.
  void (*fixed_sums)(const float* logits, int32_t count, const float* maxima, const WeightScale& scale, uint64_t* sums);
  // Fills sums [logit_blocks(count)] of 2^((logit - top) * per_logit), each exactly 0 below 2^-1000.
  void (*sums)(const float* logits, int32_t count, const WeightScale& scale, double* sums);
};
LogitScan logit_scan(Isa isa);
namespace plain {
LogitScan logit_scan();
}
namespace avx2 {
LogitScan logit_scan();
}
namespace avx512 {
LogitScan logit_scan();
}

}  // namespace quire::ops
