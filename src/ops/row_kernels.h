// What the operations by row do to one row. All instruction sets give the same bits, so two implementations serve all:
// plain loops that say what is meant, and AVX2 for every machine that has it. The rows are short and stay in the
// nearest cache; wider registers would gain nothing that a step could show.
#pragma once
#include <cstdint>

#include "base/cpu_features.h"
#include "base/types.h"
#include "ops/activation_row.h"
#include "ops/matmul.h"

namespace quire::ops {

// out = x, in out's forms.
using FillRowFn = void(const float* x, int64_t dim, const ActivationRow& out);

// out = (x * s) * weight with s = 1 / sqrt(mean(x^2) + eps), in out's forms.
using RmsNormRowFn = void(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out);

// A token's heads of one kind, queries or keys: normed (when norm is not null) and rotated in place.
struct HeadsOfToken {
  float* x;  // [heads, dim]
  int32_t heads;
  int32_t dim;
  int32_t half;  // pairs that rotate
  bool adjacent_pairs;
  const float* cos;   // [half]
  const float* sin;   // [half]
  const float* norm;  // [dim]; null: none
  float eps;
};
using RotateFn = void(const HeadsOfToken& heads);

// target = x in the type, rounded to nearest even.
using NarrowFn = void(const float* x, int64_t count, Dtype type, std::byte* target);

// The two results of a fine product (fine.h), as long as `store` makes of the columns.
struct Halves {
  const float *first, *second;
  Store store;
};
// out = their sum, out += it, or silu(gates) * ups.
using JoinHalvesFn = void(const Halves& halves, int64_t columns, float* out);

struct RowKernels {
  FillRowFn* fill;
  RmsNormRowFn* rms_norm;
  RotateFn* rotate;
  NarrowFn* narrow;
  JoinHalvesFn* join_halves;
};

namespace ref {
FillRowFn fill_row;
RmsNormRowFn rms_norm_row;
RotateFn rotate;
NarrowFn narrow;
JoinHalvesFn join_halves;
inline constexpr RowKernels kRowKernels{fill_row, rms_norm_row, rotate, narrow, join_halves};
}  // namespace ref

namespace avx2 {  // only where the machine has AVX2, FMA and F16C
FillRowFn fill_row;
RmsNormRowFn rms_norm_row;
RotateFn rotate;
NarrowFn narrow;
JoinHalvesFn join_halves;
}  // namespace avx2

// The kernels for a machine with this instruction set.
inline RowKernels row_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx2) return {avx2::fill_row, avx2::rms_norm_row, avx2::rotate, avx2::narrow, avx2::join_halves};
#endif
  return ref::kRowKernels;
}

}  // namespace quire::ops
