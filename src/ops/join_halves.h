// The two results of a fine product (fine.h) become one, for any of the SIMD types.
//
// Internal linkage: compiled with several sets of flags.
#pragma once
#include "ops/matmul_silu.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

// `count` elements at a time from `i` on: gates, if any, come before ups.
template <class S>
inline void join_at(const Halves& halves, int64_t i, int64_t columns, float* out) {
  const auto sum = [&](int64_t at) { return S::add(S::load(halves.first + at), S::load(halves.second + at)); };
  typename S::F x = sum(i);
  if (halves.store == Store::add) x = S::add(S::load(out + i), x);
  if (halves.store == Store::silu_mul) x = S::mul(silu<S>(x), sum(columns + i));
  S::store(out + i, x);
}

}  // namespace
}  // namespace quire::ops
