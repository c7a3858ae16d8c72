// What a product means, in plain loops: an item is one column, whose weights are unpacked once for all rows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/matmul.h"
#include "ops/matmul_epilogue.h"
#include "ops/packed_layout.h"

namespace quire::ops {
namespace {

// One float with fused products, so that silu gives the vector kernels' bits.
struct FusedScalar {
  using F = float;
  static F set1(float x) { return x; }
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

float half_at(const std::byte* halves, int64_t index) {
  f16 x;
  std::memcpy(&x, halves + index * 2, sizeof(x));
  return to_float(x);
}

// One column of a quantised part.
class QuantisedColumn {
 public:
  QuantisedColumn(const PackedMatrix::Part& part, int64_t column)
      : layout_(layout_of(part.type)),
        tile_(part.tiles + column / kTileColumns * part.tile_stride),
        c_(column % kTileColumns) {}

  // The stored number of input i of a block, offset included.
  int number(int64_t block, int i) const {
    const std::byte* body = tile_ + layout_.body(block);
    const Pieces pieces = pieces_of(layout_.bits(), i / 4);
    int number = 0;
    for (int p = 0; p < pieces.count; ++p) {
      const Piece& piece = pieces.at[p];
      number |= static_cast<int>(body[piece.line * kLine + c_ * 4 + i % 4]) >> piece.right & piece.mask;
    }
    return number;
  }

  float scale(int64_t block, int half) const {
    const std::byte* head = tile_ + layout_.head(block);
    if (layout_.group_blocks < 8) return half_at(head, block % layout_.group_blocks * kTileColumns + c_);
    const std::byte* own = group_scales(block);
    const int factor =
        layout_.scales == 2 ? static_cast<int8_t>(own[half * kTileColumns + c_]) : static_cast<int>(own[c_]);
    return half_at(head, c_) * static_cast<float>(factor);
  }

  float minimum(int64_t block) const {
    const float least = half_at(tile_ + layout_.head(block), kTileColumns + c_);
    if (layout_.group_blocks < 8) return least;
    return -(least * static_cast<float>(static_cast<int>(group_scales(block)[kTileColumns + c_])));
  }

 private:
  const std::byte* group_scales(int64_t block) const {
    return tile_ + layout_.head(block) + kLine + block % layout_.group_blocks * 2 * kTileColumns;
  }

  PackedLayout layout_;
  const std::byte* tile_;
  int64_t c_;
};

// The results of one column for all rows go to results[row].
void quantised_results(const PackedMatrix::Part& part, int64_t column, const ActivationRows& in, int64_t rows,
                       std::byte* scratch, float* results) {
  const QuantisedColumn weights(part, column);
  const PackedLayout layout = layout_of(part.type);
  auto* numbers = reinterpret_cast<uint8_t*>(scratch);
  for (int64_t k = 0; k < part.inputs; ++k)
    numbers[k] = static_cast<uint8_t>(weights.number(k / kBlockInputs, static_cast<int>(k % kBlockInputs)));
  std::fill_n(results, rows, 0.0f);
  const int64_t blocks = part.inputs / kBlockInputs, length = kBlockInputs / layout.scales;
  for (int64_t b = 0; b < blocks; ++b)
    for (int half = 0; half < layout.scales; ++half) {
      const float w_scale = weights.scale(b, half);
      const float w_min = layout.minimum ? weights.minimum(b) : 0.0f;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = b * kBlockInputs + half * length;
        const int8_t* q = in.q + r * in.q_stride;
        int32_t isum = 0, sum = 0;
        for (int64_t k = first; k < first + length; ++k) {
          isum += (numbers[k] - layout.offset) * q[k];
          sum += q[k];
        }
        const float in_scale = in.scale[r * in.scales_of_row() + b];
        results[r] = std::fma(static_cast<float>(isum), w_scale * in_scale, results[r]);
        if (layout.minimum) results[r] = std::fma(w_min, in_scale * static_cast<float>(sum), results[r]);
      }
    }
}

void dense_results(const PackedMatrix::Part& part, int64_t column, const ActivationRows& in, int64_t rows,
                   std::byte* scratch, float* results) {
  auto* weights = reinterpret_cast<float*>(scratch);
  const std::byte* tile = part.tiles + column / kTileColumns * part.tile_stride;
  const int64_t bytes = shape_of(part.type).bytes;
  for (int64_t k = 0; k < part.inputs; ++k)
    dequantise(part.type, tile + (k * kTileColumns + column % kTileColumns) * bytes, {&weights[k], 1});
  for (int64_t r = 0; r < rows; ++r) {
    results[r] = 0;
    for (int64_t k = 0; k < part.inputs; ++k) results[r] = std::fma(in.f32[r * in.dim + k], weights[k], results[r]);
  }
}

constexpr int64_t kRowsAtOnce = 256;  // of results

// Column `output` of the product, counted over all parts, for rows [first, first + rows).
void results_of(const MatmulArgs& args, int64_t output, int64_t first, int64_t rows, std::byte* scratch,
                float* results) {
  size_t p = 0;
  const auto parts = args.weights->parts();
  while (output >= parts[p].first_output + parts[p].outputs) ++p;
  const int halves = cpu::halves_of(args);
  ActivationRows in = args.in;
  in.f32 += first * in.dim;
  in.q += (first << halves) * in.q_stride;
  in.scale += (first << halves) * in.scales_of_row();
  const auto compute = is_dense(parts[p].type) ? dense_results : quantised_results;
  compute(parts[p], output - parts[p].first_output, in, rows << halves, scratch, results);
  for (int64_t r = 0; r < rows; ++r) {
    if (halves) results[r] = results[2 * r] + results[2 * r + 1];
    if (args.bias) results[r] += args.bias[output];
  }
}

void compute_column(const MatmulArgs& args, int64_t all_rows, int64_t column, std::byte* scratch) {
  float results[2 * kRowsAtOnce], ups[2 * kRowsAtOnce];  // two for each row with q8x2, before they are added
  for (int64_t first = 0; first < all_rows; first += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, all_rows - first);
    results_of(args, column, first, rows, scratch, results);
    if (args.store == Store::silu_mul) results_of(args, column + args.out.dim, first, rows, scratch, ups);
    for (int64_t r = 0; r < rows; ++r) {
      float& out = args.out.row(first + r)[column];
      results[r] *= args.scale;
      if (args.store == Store::set) out = results[r];
      if (args.store == Store::add) out = out + results[r];
      if (args.store == Store::silu_mul) out = cpu::silu<FusedScalar>(results[r]) * ups[r];
    }
  }
}

void matmul_op(const MatmulArgs& args, Exec& exec) {
  const int64_t rows = cpu::live_rows_of(args);
  exec.parallel(args.out.dim,
                [&](int64_t column, int thread) { compute_column(args, rows, column, exec.scratch(thread)); });
}

}  // namespace

void ref::matmul(const MatmulArgs& args, Exec& exec) {
  cpu::check_matmul(args, exec);
  check(static_cast<size_t>(args.weights->inputs()) * sizeof(float) <= exec.scratch_bytes(), args.weights->inputs(),
        " inputs need more scratch than ", exec.scratch_bytes(), " bytes a thread");
  exec.launch(matmul_op, args);
}

}  // namespace quire::ops
