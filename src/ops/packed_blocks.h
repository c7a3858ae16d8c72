// Quantised weights as a GPU multiplies them.
//
// A panel is 32 outputs over all inputs: a run of groups, which is what a warp takes at a time. A group is that of four
// tiles, one after the other, 8 outputs each. A tile's group is a head of scales, then quads of 4 blocks of 32 inputs.
// Of a gate and an up tiles alternate, 16 outputs of each in a panel.
//
// One row meets an output in each lane, so 16 bytes of nibbles are a block of an output. More rows meet them on tensor
// cores, where lane t has of each block 8 weights of output t / 4, in two words of four:
//
//   inputs   8 (t % 4) + 0..3 and + 4..7 of the block; of types that have scales for 16 inputs (Q6_K) 4 (t % 4) + 0..3
//            of the first and of the second 16
//   quad     [4 blocks][32 lanes] words of nibbles: those of the first word below, those of the second above;
//            then what a weight has above four bits: [32] words of fifth bits, in byte i bit 2 b for number i of block
//            b's first word, bit 2 b + 1 for its second (Q5); or [32][2] words of high pairs, word b / 2, in byte i the
//            pair 2 (b % 2) and, for the second word, 2 (b % 2) + 1 (Q6_K).   Q8_0: [4 blocks][32 lanes][2] words.
//   head     blocks of 32    [8 outputs][4 blocks] f16 scales, then the minima likewise; a group is one quad
//            Q4_K, Q5_K      [8] (d, dmin) f16, [8][4 pairs of blocks] (2 u8 scales, 2 u8 minima); a group is two quads
//            Q6_K            [8] f16 d, [8][8 blocks][2 halves] u8 scales plus 128; likewise
//
// Weights of types without a minimum are two's complement. Outputs and blocks that fill up the last panel and the last
// quad are zeros.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/blocks.h"
#include "base/buffer.h"
#include "ops/matmul.h"

namespace quire::ops {

inline constexpr int32_t kTileOutputs = 8, kQuadBlocks = 4;
inline constexpr int32_t kPanelTiles = 4, kPanelOutputs = kPanelTiles * kTileOutputs;

struct DeviceLayout {
  int32_t bits;   // of a weight
  int32_t quads;  // in a group
  int32_t head_bytes;
  bool has_minimum;

  constexpr int32_t quad_bytes() const { return bits * 128; }
  constexpr int32_t group_bytes() const { return head_bytes + quads * quad_bytes(); }
  constexpr int32_t group_blocks() const { return quads * kQuadBlocks; }
  constexpr int64_t groups(int64_t inputs) const { return (inputs / 32 + group_blocks() - 1) / group_blocks(); }
  constexpr int64_t panel_bytes(int64_t inputs) const { return groups(inputs) * kPanelTiles * group_bytes(); }
};

// Of a quantised type.
constexpr DeviceLayout device_layout(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return {.bits = 8, .quads = 1, .head_bytes = 64, .has_minimum = false};
    case BlockType::q4_0:
      return {.bits = 4, .quads = 1, .head_bytes = 64, .has_minimum = false};
    case BlockType::q5_0:
      return {.bits = 5, .quads = 1, .head_bytes = 64, .has_minimum = false};
    case BlockType::q4_1:
      return {.bits = 4, .quads = 1, .head_bytes = 128, .has_minimum = true};
    case BlockType::q5_1:
      return {.bits = 5, .quads = 1, .head_bytes = 128, .has_minimum = true};
    case BlockType::q4_k:
      return {.bits = 4, .quads = 2, .head_bytes = 160, .has_minimum = true};
    case BlockType::q5_k:
      return {.bits = 5, .quads = 2, .head_bytes = 160, .has_minimum = true};
    case BlockType::q6_k:
      return {.bits = 6, .quads = 2, .head_bytes = 144, .has_minimum = false};
    default:
      return {};
  }
}

// Are all parts quantised, gate and up alike, so that they are laid out so, and multiplied with the CPU's bits?
bool suits_packed_blocks(std::span<const WeightView> parts, PackedMatrix::Join join);

// A part of a matrix as it lies in panels, or a gate and its up.
class BlockPanels {
 public:
  explicit BlockPanels(const WeightView& part) : parts_{part, part}, joined_(1) {}
  BlockPanels(const WeightView& gate, const WeightView& up) : parts_{gate, up}, joined_(2) {}

  int64_t count() const { return (parts_[0].outputs * joined_ + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t bytes() const { return device_layout(parts_[0].type).panel_bytes(parts_[0].inputs); }  // of one
  void pack(int64_t panel, std::byte* to) const;
  Buffer on_device(Exec& exec) const;  // all, one after the other

 private:
  WeightView parts_[2];
  int64_t joined_;
};

}  // namespace quire::ops
