// Weights as a GPU multiplies them: the weights of each output are a row of bf16, rows dense one after the other, so
// own kernels, TMA and cuBLASLt all read the one copy.
//
//   stack         row = output: parts follow each other without a gap
//   gate_and_up   groups of 16 rows, 8 of gate and then the same 8 of up: what a thread has of a product's tile of 16
//                 outputs are rows i and i + 8, a gate and its up
//
// Rows of zeros fill up the last group of 16. Rows begin at multiples of 16 bytes: inputs are a multiple of 8.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "base/buffer.h"
#include "ops/matmul.h"

namespace quire::ops {

inline constexpr int64_t kRowGroup = 16, kHalfGroup = kRowGroup / 2;
inline constexpr int64_t kRowInputs = 8;  // inputs are a multiple of it

// What becomes of a file's type on a GPU. Every type is read as bf16 for now: rounded to nearest, ties to even.
constexpr BlockType device_type_of(BlockType /*type*/) { return BlockType::bf16; }

// Rows in memory of a matrix with so many outputs, of gate and up together.
constexpr int64_t row_count(PackedMatrix::Join join, int64_t outputs) {
  if (join == PackedMatrix::Join::stack) return (outputs + kRowGroup - 1) / kRowGroup * kRowGroup;
  return (outputs / 2 + kHalfGroup - 1) / kHalfGroup * kRowGroup;
}

// The output that a row holds the weights of; rows of zeros have one that is past its part's.
constexpr int64_t output_in_part(PackedMatrix::Join join, int64_t row) {
  return join == PackedMatrix::Join::stack ? row : row / kRowGroup * kHalfGroup + row % kHalfGroup;
}
constexpr bool is_up(PackedMatrix::Join join, int64_t row) {
  return join == PackedMatrix::Join::gate_and_up && row % kRowGroup >= kHalfGroup;
}

// Whose weights a row holds; no part: zeros.
struct RowSource {
  const WeightView* part;
  int64_t output;  // of the part
};
RowSource source_of_row(std::span<const WeightView> parts, PackedMatrix::Join join, int64_t row);

// The parts' rows in device memory. The parts fit each other; throws CheckError where inputs are no multiple of 8.
Buffer packed_rows(std::span<const WeightView> parts, PackedMatrix::Join join, Exec& exec);

uint16_t rounded_to_bf16(float x);  // to nearest, ties to even; NaN stays NaN
// Row `output` of the weights, rounded.
void read_bf16_row(const WeightView& weights, int64_t output, uint16_t* to);

// Device memory of `units` units of so many bytes each: threads of exec fill a piece of units in pinned memory while
// the piece before is copied. Throws CheckError where a unit is longer than a piece.
Buffer filled_on_device(int64_t units, int64_t unit_bytes, Exec& exec,
                        const std::function<void(int64_t unit, std::byte* to)>& fill);

// What products on exec's stream need besides, taken once: a product itself allocates nothing.
namespace cuda {
void prepare_matmul(Exec& exec);
void prepare_quantised_matmul(Exec& exec);
}  // namespace cuda

}  // namespace quire::ops
