// One row of activations on its way to a product, as the kernels that fill it see it.
#pragma once
#include <cstdint>

#include "base/check.h"
#include "ops/activations.h"

namespace quire::ops {

// Null where the form is not asked for.
struct ActivationRow {
  float* f32;     // [dim]
  int8_t* q;      // [dim]
  float* scale;   // [dim / 32]; null when q is
  int32_t* sums;  // [dim / 16]; null when q is
};

inline ActivationRow activation_row(const ActivationRows& rows, int64_t row) {
  const int64_t blocks = rows.dim / kActivationBlock;
  ActivationRow result{};
  if (rows.forms.f32) result.f32 = rows.f32 + row * rows.dim;
  if (rows.forms.q8) {
    result.q = rows.q + row * rows.q_stride;
    result.scale = rows.scale + row * blocks;
    result.sums = rows.sums + row * blocks * 2;
  }
  return result;
}

// The door of every operation that fills activations.
inline void check_activations(const char* operation, const Rows<const float>& in, const ActivationRows& out) {
  check(in.dim > 0 && in.dim == out.dim, operation, " from rows of ", in.dim, " to rows of ", out.dim);
  check(in.rows >= 0 && (in.stride >= in.dim || in.rows <= 1), operation, " from ", in.rows, " rows with stride ",
        in.stride, ", shorter than ", in.dim);
  check(in.data != nullptr || in.rows == 0, operation, " from ", in.rows, " rows and no address");
  check(out.forms.f32 || out.forms.q8, operation, " into no form");
  check(!out.forms.f32 || out.f32 != nullptr, operation, " into f32 rows without an address");
  if (!out.forms.q8) return;
  check(out.dim % kActivationBlock == 0, operation, " into quantised rows of ", out.dim, ", no whole blocks of ",
        kActivationBlock);
  check(out.q != nullptr && out.scale != nullptr && out.sums != nullptr, operation,
        " into quantised rows without an address");
  check(out.q_stride >= out.dim, operation, " into quantised rows with stride ", out.q_stride, ", shorter than ",
        out.dim);
}

}  // namespace quire::ops
