#include "ops/packed_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "ops/matmul_testing.h"

namespace quire::ops {
namespace {

using testing::Weights;

// A weight as the header describes its place, and nothing else.
class PackedWeight {
 public:
  PackedWeight(const std::vector<std::byte>& panel, BlockType type, int32_t tile, int32_t output, int64_t input)
      : type_(type),
        layout_(device_layout(type)),
        head_(panel.data() + (input / 32 / layout_.group_blocks() * 4 + tile) * layout_.group_bytes()),
        block_(static_cast<int32_t>(input / 32 % layout_.group_blocks())),
        output_(output),
        input_(static_cast<int32_t>(input % 32)) {}

  float value() const {
    const auto number = static_cast<float>(layout_.has_minimum ? stored() : from_twos_complement());
    const float product = number * scale();
    return layout_.has_minimum ? product + minimum() : product;
  }

 private:
  int32_t at(int32_t place) const { return static_cast<int32_t>(head_[place]); }
  float half(int32_t place) const { return to_float(f16{static_cast<uint16_t>(at(place) | at(place + 1) << 8)}); }
  bool of_32() const { return layout_.quads == 1; }

  int32_t stored() const {
    const bool halves = type_ == BlockType::q6_k;
    const int32_t c = halves ? input_ % 16 / 4 : input_ / 8, lane = output_ * 4 + c;
    const int32_t word = halves ? input_ / 16 : input_ / 4 % 2, i = input_ % 4, b = block_ % 4;
    const int32_t quad = layout_.head_bytes + block_ / 4 * layout_.quad_bytes();
    if (layout_.bits == 8) return at(quad + b * 256 + lane * 8 + word * 4 + i);
    const int32_t nibble = at(quad + b * 128 + lane * 4 + i) >> (4 * word) & 15;
    if (layout_.bits == 5) return nibble | (at(quad + 512 + lane * 4 + i) >> (2 * b + word) & 1) << 4;
    if (layout_.bits == 6)
      return nibble | (at(quad + 512 + lane * 8 + b / 2 * 4 + i) >> (2 * (b % 2 * 2 + word)) & 3) << 4;
    return nibble;
  }
  int32_t from_twos_complement() const {
    const int32_t number = stored(), half_range = 1 << (layout_.bits - 1);
    return number < half_range ? number : number - 2 * half_range;
  }

  float scale() const {
    if (of_32()) return half(output_ * 8 + block_ * 2);
    if (type_ == BlockType::q6_k)
      return half(output_ * 2) * static_cast<float>(at(16 + output_ * 16 + block_ * 2 + input_ / 16) - 128);
    return half(output_ * 4) * static_cast<float>(at(32 + output_ * 16 + block_ / 2 * 4 + block_ % 2));
  }
  float minimum() const {
    if (of_32()) return half(64 + output_ * 8 + block_ * 2);
    return -(half(output_ * 4 + 2) * static_cast<float>(at(32 + output_ * 16 + block_ / 2 * 4 + 2 + block_ % 2)));
  }

  BlockType type_;
  DeviceLayout layout_;
  const std::byte* head_;
  int32_t block_;  // of the group
  int32_t output_, input_;
};

// Outputs [first, first + 8) of the weights in a tile of the panel, zeros where there are none.
void expect_tile(const std::vector<std::byte>& panel, const Weights& weights, int32_t tile, int64_t first) {
  const WeightView view = weights.view();
  const std::vector<float> expected = weights.values();
  for (int32_t output = 0; output < 8; ++output)
    for (int64_t input = 0; input < view.inputs; ++input) {
      const bool exists = first + output < view.outputs;
      const float value = PackedWeight(panel, view.type, tile, output, input).value();
      const float wanted = exists ? expected[static_cast<size_t>((first + output) * view.inputs + input)] : 0.0f;
      if (exists || device_layout(view.type).has_minimum)
        ASSERT_EQ(value, wanted) << to_string(view.type) << " output " << first + output << " input " << input;
      else
        ASSERT_EQ(std::abs(value), wanted);
    }
}

TEST(PackedBlocks, HoldTheFilesNumbersWhereTheHeaderSays) {
  for (const BlockType type : testing::kQuantised) {
    const int64_t inputs = shape_of(type).elements * 3;
    const Weights weights(type, 32 + 13, inputs, 7);
    const BlockPanels panels(weights.view());
    ASSERT_EQ(panels.count(), 2);
    for (int64_t panel = 0; panel < 2; ++panel) {
      std::vector<std::byte> bytes(static_cast<size_t>(panels.bytes()), std::byte{0xaa});
      panels.pack(panel, bytes.data());
      for (int32_t tile = 0; tile < 4; ++tile) expect_tile(bytes, weights, tile, panel * 32 + tile * 8);
    }
  }
}

TEST(PackedBlocks, TilesOfAGateAndItsUpAlternate) {
  for (const BlockType type : testing::kQuantised) {
    const int64_t inputs = shape_of(type).elements;
    const Weights gate(type, 16 + 5, inputs, 7), up(type, 16 + 5, inputs, 8);
    const BlockPanels panels(gate.view(), up.view());
    ASSERT_EQ(panels.count(), 2);
    for (int64_t panel = 0; panel < 2; ++panel) {
      std::vector<std::byte> bytes(static_cast<size_t>(panels.bytes()), std::byte{0xaa});
      panels.pack(panel, bytes.data());
      for (int32_t tile = 0; tile < 4; ++tile)
        expect_tile(bytes, tile % 2 ? up : gate, tile, panel * 16 + tile / 2 * 8);
    }
  }
}

// Groups are copied in 16 bytes, and a type takes hardly more of them than in the file.
TEST(PackedBlocks, AreAsSmallAsTheFiles) {
  for (const BlockType type : testing::kQuantised) {
    const DeviceLayout layout = device_layout(type);
    EXPECT_EQ(layout.group_bytes() % 16, 0);
    const auto in_file = static_cast<double>(bytes_of(type, 32 * 4096));
    EXPECT_LE(static_cast<double>(layout.panel_bytes(4096)), 1.03 * in_file) << to_string(type);
    EXPECT_EQ(layout.groups(4096), 4096 / 32 / layout.group_blocks());
    EXPECT_EQ(layout.groups(32), 1) << "the last group may have fewer blocks than its room";
  }
}

}  // namespace
}  // namespace quire::ops
