// A logit's weight before normalisation, in arithmetic that every machine does alike: see logit_scan.h for what it is.
// Relative error below 1e-14.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/logit_scan.h"

namespace quire::ops {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

// result = 2^x for x of 0 or less; exactly 0 below -1000. Real is double or a vector of them, Bits the same width in
// unsigned integers. By reference, because vectors are passed by value in other ways under other flags.
template <class Real, class Bits>
[[gnu::always_inline]] inline void two_to(const Real& x, Real& result) {
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
  Bits bits, whole;
  std::memcpy(&bits, &series, sizeof(bits));
  std::memcpy(&whole, &shifted, sizeof(whole));
  bits += whole << 52;
  Real power;
  std::memcpy(&power, &bits, sizeof(power));
  result = x < -1000.0 ? Real{} : power;
}

inline double logit_weight(float logit, const WeightScale& scale) {
  double weight;
  two_to<double, uint64_t>((static_cast<double>(logit) - scale.top) * scale.per_logit, weight);
  return weight;
}

}  // namespace
}  // namespace quire::ops
