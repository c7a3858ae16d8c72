// Weights of F8_E4M3 as a GPU multiplies them, in the order in which the lanes of a warp hand them to tensor cores.
//
// A strip is 16 rows, counted as packed_rows.h counts them (gate and up alternate), over all inputs: a run of pieces of
// 128 inputs. Lane t of a warp has of each quarter of a piece, 32 inputs, 8 of row t / 4 and 8 of the row eight below:
//
//   piece   [4 quarters][32 lanes][2 rows][8 bytes], inputs 8 (t % 4) + 2, 0, 3, 1, 6, 4, 7, 5 of the quarter: a word
//   is
//           two pairs of bf16, apart by a shift; then f32 scales of the upper and the lower eight rows, 8 bytes unused
//
// Scales of tensors and of blocks are the pieces', those of channels are in an array beside, one for each row. Where
// one is used the other is 1.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "ops/matmul.h"
#include "ops/packed_rows.h"

namespace quire::ops {

inline constexpr int64_t kFp8PieceInputs = 128;
inline constexpr int64_t kFp8PieceWeights = kRowGroup * kFp8PieceInputs;  // bytes before the scales
inline constexpr int64_t kFp8PieceBytes = kFp8PieceWeights + 16;

// Do the parts have whole pieces, and scales that can lie so? Others are rounded to bf16 at load.
bool suits_packed_fp8(std::span<const WeightView> parts, PackedMatrix::Join join);

// A strip of the parts, which suit. `to` has kFp8PieceBytes for each piece. False: there is a NaN among the weights.
bool pack_fp8_strip(std::span<const WeightView> parts, PackedMatrix::Join join, int64_t strip, std::byte* to);
// What the sum of a row is multiplied by; 1 where the row has no weights.
float fp8_row_scale(std::span<const WeightView> parts, PackedMatrix::Join join, int64_t row);

struct PackedFp8 {
  Buffer strips, row_scales;  // in device memory
};
// Throws CheckError where a weight is NaN, which a GPU would read as 480.
PackedFp8 packed_fp8(std::span<const WeightView> parts, PackedMatrix::Join join, Exec& exec);

}  // namespace quire::ops
