#include "ops/packed_fp8.h"

#include <gtest/gtest.h>

#include <cstring>

#include "ops/matmul_testing.h"

namespace quire::ops {
namespace {

using testing::fp8_weights;
using testing::Weights;
using Join = PackedMatrix::Join;

// A weight of a strip as the header describes its place, times both its scales.
float weight_at(const std::vector<std::byte>& strip, float row_scale, int64_t in_strip, int64_t input) {
  constexpr int64_t kPlaces[] = {1, 3, 0, 2, 5, 7, 4, 6};  // of the eight inputs
  const std::byte* piece = strip.data() + input / 128 * kFp8PieceBytes;
  const int64_t quarter = input % 128 / 32, lane = in_strip % 8 * 4 + input % 32 / 8;
  const std::byte* at = piece + (quarter * 32 + lane) * 16 + in_strip / 8 * 8 + kPlaces[input % 8];
  float number, scale;
  dequantise(BlockType::f8_e4m3, at, {&number, 1});
  std::memcpy(&scale, piece + 2048 + in_strip / 8 * 4, sizeof(scale));
  return number * scale * row_scale;
}

void expect_strips(const std::vector<Weights>& parts, Join join) {
  std::vector<WeightView> views;
  int64_t outputs = 0;
  for (const Weights& part : parts) {
    views.push_back(part.view());
    outputs += part.outputs;
  }
  ASSERT_TRUE(suits_packed_fp8(views, join));
  const int64_t inputs = parts[0].inputs;
  std::vector<std::byte> strip(static_cast<size_t>(inputs / 128 * kFp8PieceBytes), std::byte{0xaa});
  for (int64_t row = 0; row < row_count(join, outputs); ++row) {
    if (row % 16 == 0) {
      EXPECT_TRUE(pack_fp8_strip(views, join, row / 16, strip.data()));
    }
    const RowSource source = source_of_row(views, join, row);
    std::vector<float> expected(static_cast<size_t>(inputs));
    if (source.part) read_weights(*source.part, source.output, 0, expected);
    for (int64_t input = 0; input < inputs; ++input)
      ASSERT_EQ(weight_at(strip, fp8_row_scale(views, join, row), row % 16, input), expected[input])
          << row << ", " << input;
  }
}

TEST(PackedFp8, HoldsTheFilesNumbersWhereTheHeaderSays) {
  expect_strips({fp8_weights(40, 256, 1, 40, 256)}, Join::stack);                                  // of the tensor
  expect_strips({fp8_weights(40, 384, 2, 1, 384), fp8_weights(24, 384, 3, 1, 384)}, Join::stack);  // of channels
  expect_strips({fp8_weights(136, 256, 4, 128, 128), fp8_weights(8, 256, 5, 128, 128)}, Join::stack);
  expect_strips({fp8_weights(136, 256, 6, 128, 128), fp8_weights(136, 256, 7, 128, 128)}, Join::gate_and_up);
  expect_strips({Weights(BlockType::f8_e4m3, 16, 128, 8)}, Join::stack);  // without scales
}

TEST(PackedFp8, SuitsWholePiecesWithScalesOfTensorsChannelsAndBlocks) {
  const auto suits = [](int64_t outputs, int64_t inputs, int64_t block_outputs, int64_t block_inputs) {
    const Weights weights = fp8_weights(outputs, inputs, 1, block_outputs, block_inputs);
    const WeightView view = weights.view();
    return suits_packed_fp8({&view, 1}, Join::stack);
  };
  EXPECT_TRUE(suits(16, 256, 64, 256));
  EXPECT_FALSE(suits(16, 160, 16, 160)) << "no whole piece";
  EXPECT_FALSE(suits(12, 128, 12, 128)) << "half a group of rows";
  EXPECT_FALSE(suits(16, 256, 1, 128)) << "scales by channel and by group";
  EXPECT_FALSE(suits(16, 256, 16, 64)) << "a piece with two scales";
  const Weights dense(BlockType::bf16, 16, 128, 1);
  const WeightView mixed[] = {fp8_weights(16, 128, 1, 16, 128).view(), dense.view()};
  EXPECT_FALSE(suits_packed_fp8(mixed, Join::stack));
}

TEST(PackedFp8, SeesNan) {
  Weights weights = fp8_weights(16, 256, 1, 16, 256);
  weights.bytes[256 * 9 + 200] = std::byte{0xff};
  const WeightView view = weights.view();
  std::vector<std::byte> strip(2 * kFp8PieceBytes);
  EXPECT_FALSE(pack_fp8_strip({&view, 1}, Join::stack, 0, strip.data()));
}

// On a CPU they become bf16.
TEST(PackedFp8, ACpuMultipliesTheScaledNumbers) {
  const Weights weights[] = {fp8_weights(24, 160, 1, 1, 160), fp8_weights(16, 160, 2, 16, 160)};
  const WeightView views[] = {weights[0].view(), weights[1].view()};
  const PackedMatrix matrix(views, Join::stack, testing::team());
  EXPECT_EQ(matrix.forms(), Forms{.f32 = true});
  std::vector<float> x(160);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  testing::Output out(1, 40);
  const int32_t live = 1;
  matmul({.weights = &matrix,
          .in = {.forms = {.f32 = true}, .rows = 1, .dim = 160, .f32 = x.data()},
          .out = out.view(),
          .live_rows = &live},
         testing::team());
  for (int64_t c = 0; c < 40; ++c) {
    const Weights& part = weights[c < 24 ? 0 : 1];
    const std::vector<float> values = part.values();
    float sum = 0;
    for (size_t k = 0; k < x.size(); ++k) sum += x[k] * values[(c < 24 ? c : c - 24) * 160 + k];
    EXPECT_FLOAT_EQ(out.view().row(0)[c], sum) << c;
  }
}

}  // namespace
}  // namespace quire::ops
