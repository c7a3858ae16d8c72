#include "ops/packed_fp8.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.h"

namespace quire::ops {
namespace {

using Join = PackedMatrix::Join;

bool has_channel_scales(const WeightView& part) { return part.scales.data && part.scales.block_outputs == 1; }

bool has_piece_scales(const WeightView& part) {
  const WeightScales& scales = part.scales;
  const bool by_half_strip = scales.block_outputs % kHalfGroup == 0 || scales.block_outputs >= part.outputs;
  const bool by_piece = scales.block_inputs % kFp8PieceInputs == 0 || scales.block_inputs >= part.inputs;
  return !scales.data || (by_half_strip && by_piece);
}

bool suits_part(const WeightView& part) {
  const bool rows_share_scales = has_channel_scales(part) && part.scales.block_inputs >= part.inputs;
  return part.type == BlockType::f8_e4m3 && part.inputs % kFp8PieceInputs == 0 && part.outputs % kHalfGroup == 0 &&
         (rows_share_scales || has_piece_scales(part));
}

// The lane's 8 inputs of a row in the order in which they lie.
constexpr int32_t kOrder[] = {2, 0, 3, 1, 6, 4, 7, 5};
constexpr std::byte kMagnitude{0x7f};  // all bits of it: NaN

// False: one of them is NaN.
bool put_piece_row(const std::byte* inputs, int64_t in_strip, std::byte* piece) {
  bool numbers = true;
  for (int64_t i = 0; i < kFp8PieceInputs; ++i) numbers &= (inputs[i] & kMagnitude) != kMagnitude;
  for (int64_t quarter = 0; quarter < 4; ++quarter)
    for (int64_t c = 0; c < 4; ++c) {
      const int64_t lane = in_strip % kHalfGroup * 4 + c;
      std::byte* to = piece + (quarter * 32 + lane) * 16 + in_strip / kHalfGroup * 8;
      for (size_t i = 0; i < std::size(kOrder); ++i) to[i] = inputs[quarter * 32 + c * 8 + kOrder[i]];
    }
  return numbers;
}

}  // namespace

bool suits_packed_fp8(std::span<const WeightView> parts, Join /*join*/) {
  return std::all_of(parts.begin(), parts.end(), suits_part);
}

bool pack_fp8_strip(std::span<const WeightView> parts, Join join, int64_t strip, std::byte* to) {
  const int64_t pieces = parts[0].inputs / kFp8PieceInputs;
  bool numbers = true;
  std::memset(to, 0, static_cast<size_t>(pieces * kFp8PieceBytes));
  for (int64_t in_strip = 0; in_strip < kRowGroup; ++in_strip) {
    const RowSource source = source_of_row(parts, join, strip * kRowGroup + in_strip);
    if (!source.part) continue;
    const std::byte* row = source.part->data + source.output * source.part->row_stride();
    const bool leads = in_strip % kHalfGroup == 0;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      std::byte* at = to + piece * kFp8PieceBytes;
      numbers &= put_piece_row(row + piece * kFp8PieceInputs, in_strip, at);
      if (!leads) continue;
      const float scale =
          has_channel_scales(*source.part) ? 1 : source.part->scale(source.output, piece * kFp8PieceInputs);
      std::memcpy(at + kFp8PieceWeights + in_strip / kHalfGroup * sizeof(float), &scale, sizeof(float));
    }
  }
  return numbers;
}

float fp8_row_scale(std::span<const WeightView> parts, Join join, int64_t row) {
  const RowSource source = source_of_row(parts, join, row);
  return source.part && has_channel_scales(*source.part) ? source.part->scale(source.output, 0) : 1;
}

PackedFp8 packed_fp8(std::span<const WeightView> parts, Join join, Exec& exec) {
  cuda::prepare_quantised_matmul(exec);
  int64_t outputs = 0;
  for (const WeightView& part : parts) outputs += part.outputs;
  const int64_t rows = row_count(join, outputs), pieces = parts[0].inputs / kFp8PieceInputs;
  PackedFp8 packed;
  std::atomic<bool> numbers = true;
  packed.strips = filled_on_device(rows / kRowGroup, pieces * kFp8PieceBytes, exec, [&](int64_t strip, std::byte* to) {
    if (!pack_fp8_strip(parts, join, strip, to)) numbers = false;
  });
  check(numbers, "there is a NaN among the weights of ", parts[0]);
  packed.row_scales = filled_on_device(rows, sizeof(float), exec, [&](int64_t row, std::byte* to) {
    const float scale = fp8_row_scale(parts, join, row);
    std::memcpy(to, &scale, sizeof(scale));
  });
  return packed;
}

}  // namespace quire::ops
