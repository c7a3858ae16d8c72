#include "ops/activations.h"

#include "base/check.h"

namespace quire::ops {
namespace {

constexpr int64_t kLine = 64;  // every array and every row of q starts on a cache line

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Where the arrays lie, for rows of the longest dim; of the quantised ones each row may have two.
struct Layout {
  int64_t q, scale, sums, end;  // in bytes; f32 is at 0
};
Layout layout_of(int64_t rows, int64_t dim) {
  const int64_t blocks = (dim + kActivationBlock - 1) / kActivationBlock;
  Layout layout;
  layout.q = round_up(rows * dim * int64_t{sizeof(float)}, kLine);
  layout.scale = layout.q + 2 * rows * round_up(dim, kLine);
  layout.sums = layout.scale + round_up(2 * rows * blocks * int64_t{sizeof(float)}, kLine);
  layout.end = layout.sums + round_up(2 * rows * blocks * 2 * int64_t{sizeof(int32_t)}, kLine);
  return layout;
}

size_t checked_bytes(int64_t rows, int64_t dim) {
  constexpr int64_t kMost = int64_t{1} << 40;  // keeps the products below from wrapping around
  check(rows > 0 && dim > 0 && rows <= kMost / dim, "activations cannot be ", rows, " rows of ", dim);
  return static_cast<size_t>(layout_of(rows, dim).end);
}

}  // namespace

ActivationBuffer::ActivationBuffer(int64_t rows, int64_t dim)
    : rows_(rows), dim_(dim), memory_(checked_bytes(rows, dim)) {}

ActivationRows ActivationBuffer::view(int64_t dim, Forms forms) const {
  check(dim > 0 && dim <= dim_, "activations with room for rows of ", dim_, " cannot hold rows of ", dim);
  check(!forms.quantised() || dim % kActivationBlock == 0, "quantised rows of ", dim, " are no whole blocks of ",
        kActivationBlock);
  const Layout layout = layout_of(rows_, dim_);
  std::byte* base = memory_.data();
  return {.forms = forms,
          .rows = rows_,
          .dim = dim,
          .f32 = reinterpret_cast<float*>(base),
          .q = reinterpret_cast<int8_t*>(base + layout.q),
          .q_stride = round_up(dim, kLine),
          .scale = reinterpret_cast<float*>(base + layout.scale),
          .sums = reinterpret_cast<int32_t*>(base + layout.sums)};
}

}  // namespace quire::ops
