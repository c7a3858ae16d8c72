// 2^x for x < 127 and any of the SIMD types, one polynomial for all: relative error below 2e-7, exactly 1 at 0, exactly
// 0 below -126 and at -inf, NaN stays NaN. Softmax needs the two exact values: a factor of 1 must change nothing.
#pragma once

namespace quire::simd {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

template <class S>
inline typename S::F exp2(typename S::F x) {
  using F = typename S::F;
  const F whole = S::round(x);
  const F f = S::sub(x, whole);  // in [-1/2, 1/2], or NaN at -inf, where it does not matter
  F p = S::set1(0.0013264727f);
  p = S::fma(p, f, S::set1(0.009671513f));
  p = S::fma(p, f, S::set1(0.055507336f));
  p = S::fma(p, f, S::set1(0.24022242f));
  p = S::fma(p, f, S::set1(0.693147f));
  p = S::fma(p, f, S::set1(1.0f));
  return S::times_power_of_two(p, whole, x);
}

}  // namespace
}  // namespace quire::simd
