#include <gtest/gtest.h>

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
