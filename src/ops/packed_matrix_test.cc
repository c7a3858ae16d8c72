#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"
#include "ops/matmul.h"
#include "ops/matmul_testing.h"
#include "ops/packed_layout.h"

namespace quire::ops {
namespace {

using testing::team;
using testing::Weights;
using Join = PackedMatrix::Join;

void expect_pack_refused(std::vector<WeightView> views, Join join, const std::string& text) {
  try {
    PackedMatrix(views, join, team());
    ADD_FAILURE() << "not refused: " << text;
  } catch (const CheckError& error) {
    EXPECT_EQ(error.what(), text);
  }
}

TEST(PackedLayout, TakesNoMoreThanTheFileButForRounding) {
  for (BlockType type : testing::kQuantised) {
    const int64_t inputs = 2048, file = 16 * bytes_of(type, inputs);
    const bool expanded = type == BlockType::q4_k || type == BlockType::q5_k;  // 6-bit scales become bytes
    EXPECT_LE(static_cast<double>(tile_bytes(type, inputs)), static_cast<double>(file) * (expanded ? 1.03 : 1.01))
        << to_string(type);
  }
}

TEST(PackedLayout, AnOddBlockHasAGroupOfItsOwn) {
  EXPECT_EQ(tile_bytes(BlockType::q8_0, 64), 64 + 2 * 512);
  EXPECT_EQ(tile_bytes(BlockType::q8_0, 96), 64 + 2 * 512 + 64 + 512);
  EXPECT_EQ(tile_bytes(BlockType::bf16, 3), 128);  // 96 bytes in whole lines
}

TEST(PackedMatrix, KnowsItsShapeAndItsForms) {
  const Weights a(BlockType::q4_1, 20, 96, 1), b(BlockType::f16, 33, 96, 2);
  const WeightView views[] = {a.view(), b.view()};
  const PackedMatrix packed(views, Join::stack, team());
  EXPECT_EQ(packed.outputs(), 53);
  EXPECT_EQ(packed.inputs(), 96);
  EXPECT_EQ(packed.forms(), (Forms{.f32 = true, .q8 = true}));
  EXPECT_EQ(packed.bytes(),
            static_cast<size_t>(2 * tile_bytes(BlockType::q4_1, 96) + 3 * tile_bytes(BlockType::f16, 96)));
  EXPECT_EQ(packed.parts()[1].first_output, 20);
}

TEST(PackedMatrix, GateAndUpTilesAlternate) {
  const Weights a(BlockType::q8_0, 20, 96, 1), b(BlockType::q4_0, 20, 96, 2);
  const WeightView views[] = {a.view(), b.view()};
  const PackedMatrix packed(views, Join::gate_and_up, team());
  const auto parts = packed.parts();
  EXPECT_EQ(parts[1].tiles - parts[0].tiles, tile_bytes(BlockType::q8_0, 96));
  EXPECT_EQ(parts[0].tile_stride, tile_bytes(BlockType::q8_0, 96) + tile_bytes(BlockType::q4_0, 96));
  EXPECT_EQ(parts[1].tile_stride, parts[0].tile_stride);
}

TEST(PackedMatrix, RefusesWhatItCannotPackAndShowsIt) {
  const Weights a(BlockType::q4_1, 20, 96, 1), b(BlockType::q4_1, 21, 96, 2), c(BlockType::q8_0, 20, 64, 2);
  expect_pack_refused({}, Join::stack, "a packed matrix needs at least one part");
  expect_pack_refused({{BlockType::q4_1, a.bytes.data(), 0, 96}}, Join::stack,
                      "a matrix without elements cannot be packed: Q4_1 [0, 96]");
  expect_pack_refused({{BlockType::q4_1, a.bytes.data(), 16, 80}}, Join::stack,
                      "the inputs are not whole blocks of 32: Q4_1 [16, 80]");
  expect_pack_refused({{BlockType::q6_k, a.bytes.data(), 1, 96}}, Join::stack,
                      "the inputs are not whole blocks of 256: Q6_K [1, 96]");
  expect_pack_refused({a.view(), c.view()}, Join::stack,
                      "matrices over different inputs cannot be joined: Q4_1 [20, 96] and Q8_0 [20, 64]");
  expect_pack_refused({a.view()}, Join::gate_and_up, "gate and up are two matrices, not 1");
  expect_pack_refused({a.view(), b.view()}, Join::gate_and_up,
                      "gate and up differ in shape: Q4_1 [20, 96] and Q4_1 [21, 96]");
}

// A part says the numbers that the whole says there, packs to the bytes of a matrix of its own, and can be cut again.
TEST(WeightView, ACutIsAViewOfTheSameNumbers) {
  for (const BlockType type : {BlockType::f32, BlockType::bf16, BlockType::q8_0, BlockType::q4_k, BlockType::f8_e4m3}) {
    const Weights whole =
        type == BlockType::f8_e4m3 ? testing::fp8_weights(48, 1024, 1, 16, 128) : Weights(type, 48, 1024, 1);
    const std::vector<float> values = whole.values();
    const WeightView part = some_outputs(some_inputs(some_inputs(whole.view(), 256, 768), 256, 512), 16, 24);
    EXPECT_EQ(to_string(part), cat(type, " [24, 512]"));
    std::vector<float> row(512);
    for (int64_t output = 0; output < part.outputs; ++output) {
      read_weights(part, output, 0, row);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), values.begin() + (16 + output) * 1024 + 512))
          << to_string(type) << ", output " << output;
    }

    std::vector<std::byte> dense;
    for (int64_t output = 0; output < part.outputs; ++output)
      dense.insert(dense.end(), part.data + output * part.row_stride(),
                   part.data + output * part.row_stride() + bytes_of(type, part.inputs));
    WeightView copy{type, dense.data(), part.outputs, part.inputs, part.scales};
    const PackedMatrix cut({&part, 1}, Join::stack, team()), own({&copy, 1}, Join::stack, team());
    ASSERT_EQ(cut.bytes(), own.bytes());
    EXPECT_EQ(std::memcmp(cut.parts()[0].tiles, own.parts()[0].tiles, cut.bytes()), 0) << to_string(type);
  }
}

void expect_cut_refused(const std::function<WeightView()>& cut, const std::string& text) {
  try {
    cut();
    ADD_FAILURE() << "not refused: " << text;
  } catch (const CheckError& error) {
    EXPECT_EQ(error.what(), text);
  }
}

TEST(WeightView, RefusesCutsThatItCannotSay) {
  const Weights q(BlockType::q4_k, 8, 512, 1), fp8 = testing::fp8_weights(48, 512, 1, 16, 128);
  expect_cut_refused([&] { return some_outputs(q.view(), 4, 5); }, "there are no outputs 4 to 9 of Q4_K [8, 512]");
  expect_cut_refused([&] { return some_outputs(q.view(), 4, 0); }, "there are no outputs 4 to 4 of Q4_K [8, 512]");
  expect_cut_refused([&] { return some_inputs(q.view(), -256, 256); },
                     "there are no inputs -256 to 0 of Q4_K [8, 512]");
  expect_cut_refused([&] { return some_inputs(q.view(), 128, 256); },
                     "inputs 128 to 384 of Q4_K [8, 512] are no whole blocks of 256");
  expect_cut_refused([&] { return some_inputs(fp8.view(), 64, 128); },
                     "inputs 64 to 192 of F8_E4M3 [48, 512] begin within a block of 128 with one scale");
  expect_cut_refused([&] { return some_outputs(fp8.view(), 8, 16); },
                     "outputs 8 to 24 of F8_E4M3 [48, 512] begin within a block of 16 with one scale");
  EXPECT_EQ(some_inputs(fp8.view(), 64, 64).scale(17, 63), fp8.view().scale(17, 127));
}

TEST(PackedMatrix, MovesWithoutMovingItsTiles) {
  const Weights a(BlockType::q4_1, 20, 96, 1);
  const WeightView view = a.view();
  PackedMatrix packed({&view, 1}, Join::stack, team());
  const std::byte* tiles = packed.parts()[0].tiles;
  const PackedMatrix moved = std::move(packed);
  EXPECT_EQ(moved.parts()[0].tiles, tiles);
}

}  // namespace
}  // namespace quire::ops
