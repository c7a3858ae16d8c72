// One float with fused products: what the references of vector kernels compute with, so that exp2 gives their bits.
#pragma once
#include <cmath>

namespace quire::ops {

struct FusedScalar {
  using F = float;
  static F set1(float x) { return x; }
  static F load(const float* p) { return *p; }
  static void store(float* p, F x) { *p = x; }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return std::fma(a, b, c); }
  static F max(F a, F b) { return a > b ? a : b; }  // b where either is NaN, as in the vector types
  static F min(F a, F b) { return a < b ? a : b; }
  static F round(F x) { return std::nearbyint(x); }
  static F times_power_of_two(F p, F whole, F x) { return x < -126.0f ? 0.0f : p * std::exp2(whole); }
};

}  // namespace quire::ops
