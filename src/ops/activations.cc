#include "ops/activations.h"

#include "base/check.h"

namespace quire::ops {
namespace {

constexpr int64_t kArrayAlign = 64;  // every array and every row of q starts on a cache line

constexpr int64_t aligned(int64_t bytes) { return (bytes + kArrayAlign - 1) / kArrayAlign * kArrayAlign; }

// A line more than a row has, so that rows whose length is a power of two do not meet in a few sets of a cache.
constexpr int64_t q_stride_of(int64_t dim) { return aligned(dim) + kArrayAlign; }

// Where the arrays lie, for rows of the longest dim; of the quantised ones each row may have two.
struct Layout {
  int64_t bf16, q, scale, sums, end;  // in bytes; f32 is at 0
};
Layout arrays_of(int64_t rows, int64_t dim) {
  const int64_t blocks = (dim + kActivationBlock - 1) / kActivationBlock;
  Layout layout;
  layout.bf16 = aligned(rows * dim * int64_t{sizeof(float)});
  layout.q = layout.bf16 + aligned(rows * dim * int64_t{sizeof(uint16_t)});
  layout.scale = layout.q + 2 * rows * q_stride_of(dim);
  layout.sums = layout.scale + aligned(2 * rows * blocks * int64_t{sizeof(float)});
  layout.end = layout.sums + aligned(2 * rows * blocks * 2 * int64_t{sizeof(int32_t)});
  return layout;
}

size_t checked_bytes(int64_t rows, int64_t dim) {
  constexpr int64_t kMost = int64_t{1} << 40;  // keeps the products below from wrapping around
  check(rows > 0 && dim > 0 && rows <= kMost / dim, "activations cannot be ", rows, " rows of ", dim);
  return static_cast<size_t>(arrays_of(rows, dim).end);
}

// Every other row, from `first` on.
ActivationRows every_other(const ActivationRows& rows, int64_t first) {
  check(rows.forms.q8x2, "rows that are not at twice the precision have no halves");
  const int64_t scales = rows.scales_of_row();
  ActivationRows half = rows;
  half.forms.q8x2 = false;
  half.forms.q8 = true;
  half.q += first * rows.q_stride;
  half.scale += first * scales;
  half.sums += first * scales * 2;
  half.q_stride = 2 * rows.q_stride;
  half.scale_stride = 2 * scales;
  return half;
}

}  // namespace

ActivationRows first_of_two(const ActivationRows& rows) { return every_other(rows, 0); }
ActivationRows rest_of_two(const ActivationRows& rows) { return every_other(rows, 1); }

ActivationBuffer::ActivationBuffer(int64_t rows, int64_t dim, Place place)
    : rows_(rows), dim_(dim), memory_(checked_bytes(rows, dim), place) {}

ActivationRows ActivationBuffer::view(int64_t dim, Forms forms) const {
  check(dim > 0 && dim <= dim_, "activations with room for rows of ", dim_, " cannot hold rows of ", dim);
  check(!forms.quantised() || dim % kActivationBlock == 0, "quantised rows of ", dim, " are no whole blocks of ",
        kActivationBlock);
  const Layout layout = arrays_of(rows_, dim_);
  std::byte* base = memory_.data();
  return {.forms = forms,
          .rows = rows_,
          .dim = dim,
          .f32 = reinterpret_cast<float*>(base),
          .bf16 = reinterpret_cast<uint16_t*>(base + layout.bf16),
          .q = reinterpret_cast<int8_t*>(base + layout.q),
          .q_stride = q_stride_of(dim),
          .scale = reinterpret_cast<float*>(base + layout.scale),
          .sums = reinterpret_cast<int32_t*>(base + layout.sums)};
}

}  // namespace quire::ops
