// silu(x) = x / (1 + exp(-x)) for any of the SIMD types, the same bits for all that fuse products.
//
// Computed with exp(-|x|), which cannot overflow, so that large negative numbers give zeros whatever they meet next.
#pragma once
#include "base/simd/exp2.h"

namespace quire::ops {
namespace {  // compiled with several sets of flags: the linker must not keep one copy for all

template <class S>
inline typename S::F silu(typename S::F x) {
  using F = typename S::F;
  const F zero = S::set1(0.0f);
  const F exponent = S::mul(x, S::set1(1.44269504f));
  const F e = simd::exp2<S>(S::min(S::sub(zero, exponent), exponent));
  // x where it is positive, else x e; with x as the second argument NaN stays NaN.
  const F numerator = S::fma(S::min(zero, x), e, S::max(zero, x));
  return S::div(numerator, S::add(S::set1(1.0f), e));
}

}  // namespace
}  // namespace quire::ops
