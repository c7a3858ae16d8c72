// Operations that compute each row from that row alone: run on the calling thread when they are little work, cut over
// the team when they are much. How rows are cut changes the time and nothing else.
//
// What they do to one row has two implementations, which give the same bits: plain loops that say what is meant (ref,
// in x_ref.cc and logits.cc), and AVX2 for every machine that has it (by_row_avx2.cc). The rows are short and stay in
// the nearest cache; wider registers would gain nothing that a step could show.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/cpu_features.h"
#include "base/exec.h"
#include "base/types.h"
#include "ops/activations.h"
#include "ops/rms_norm.h"

namespace quire::ops {

// --- rows over threads

// What a graph keeps. Op is trivially copyable, names itself by kName, and op.run_row(row) computes one row;
// op.check_row(row), where it has one, throws CheckError for a row whose inputs are out of range.
template <class Op>
struct ByRow {
  Op op;
  const int32_t* live_rows;  // read, and held against the room, when the operation runs
  int64_t room;
  int64_t rows_in_item;  // at most
};

// A few microseconds of work, next to which handing an item to a thread and joining cost little.
inline constexpr int64_t kElementsInItem = 8192;

namespace detail {
template <class Op>
void run_rows(const ByRow<Op>& by_row, Exec& exec) {
  const int64_t rows = *by_row.live_rows;
  check(rows >= 0 && rows <= by_row.room, Op::kName, " of ", rows, " live rows in room for ", by_row.room);
  if constexpr (requires { by_row.op.check_row(rows); })
    for (int64_t row = 0; row < rows; ++row) by_row.op.check_row(row);
  const int64_t items = (rows + by_row.rows_in_item - 1) / by_row.rows_in_item;
  exec.parallel(items, [&](int64_t item, int) {
    const int64_t end = (item + 1) * rows / items;
    for (int64_t row = item * rows / items; row < end; ++row) by_row.op.run_row(row);
  });
}
}  // namespace detail

template <class Op>
void launch_by_row(const Op& op, const int32_t* live_rows, int64_t room, int64_t elements_in_row, Exec& exec) {
  check(live_rows != nullptr, Op::kName, " needs the address of the live row count");
  const int64_t rows_in_item = std::max<int64_t>(1, kElementsInItem / std::max<int64_t>(1, elements_in_row));
  exec.launch(detail::run_rows<Op>, ByRow<Op>{op, live_rows, room, rows_in_item});
}

// --- one row

struct QuantisedRow {
  int8_t* q;      // [dim]; null: not asked for
  float* scale;   // [dim / 32]
  int32_t* sums;  // [dim / 16]
};
// One row of activations as it is filled.
struct ActivationRow {
  float* f32;         // [dim]; null: not asked for
  QuantisedRow q8;    // of x
  QuantisedRow rest;  // of what q8 leaves over
};
ActivationRow activation_row(const ActivationRows& rows, int64_t row);
// The door of every operation that fills activations.
void check_activations(const char* operation, const Rows<const float>& in, const ActivationRows& out, Device device);

// out = x, in out's forms.
using FillRowFn = void(const float* x, int64_t dim, const ActivationRow& out);

// out = (x * s) * weight with s = 1 / sqrt(mean(x^2) + eps), in out's forms.
using RmsNormRowFn = void(const float* x, const float* weight, float eps, int64_t dim, const ActivationRow& out);

// A token's heads of one kind, queries or keys: normed (when norm is not null), norm_dim numbers at a time, and rotated
// in place.
struct HeadsOfToken {
  float* x;  // [heads, dim]
  int32_t heads;
  int32_t dim;
  int32_t half;  // pairs that rotate
  bool adjacent_pairs;
  const float* cos;   // [half]
  const float* sin;   // [half]
  const float* norm;  // [norm_dim]; null: none
  int64_t norm_dim;   // dim, or heads * dim
  float eps;
};
using RotateFn = void(const HeadsOfToken& heads);

// target = x in the type, rounded to nearest even.
using NarrowFn = void(const float* x, int64_t count, Dtype type, std::byte* target);

// Of numbers; NaN is none. -inf where there are none.
using LargestFn = float(const float* x, int64_t count);

// marks[i] = 1 where one of x [kLogitGroup * i, kLogitGroup * (i + 1)) is at least `least`, else 0 (logits.h).
using MarkGroupsFn = void(const float* x, int64_t count, float least, uint8_t* marks);

struct RowKernels {
  FillRowFn* fill;
  RmsNormRowFn* rms_norm;
  RotateFn* rotate;
  NarrowFn* narrow;
  LargestFn* largest;
  MarkGroupsFn* mark_groups;
};

namespace ref {
FillRowFn fill_row;
RmsNormRowFn rms_norm_row;
RotateFn rotate;
NarrowFn narrow;
LargestFn largest;
MarkGroupsFn mark_groups;
inline constexpr RowKernels kRowKernels{fill_row, rms_norm_row, rotate, narrow, largest, mark_groups};

// Block b of a row, from its 32 numbers.
void fill_block(const float* x, int64_t b, const ActivationRow& out);
// 1 / sqrt(mean(x^2) + eps). Squares are summed by fused multiply-add in kSquareLanes lanes, number i in lane
// i % kSquareLanes, ascending; then the lanes fold by halves: lane i takes lane i + 512, then i + 256, ..., i + 1.
// Quotients and the root are rounded exactly.
float rms_scale(const float* x, int64_t dim, float eps);
}  // namespace ref

namespace avx2 {
RowKernels row_kernels();  // only where the machine has AVX2, FMA and F16C
}

// The kernels for a machine with this instruction set.
inline RowKernels row_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx2) return avx2::row_kernels();
#endif
  return ref::kRowKernels;
}

}  // namespace quire::ops
