// What lies in a tile of packed weights: 16 output columns over all inputs, the same for every instruction set.
//
// Quantised tiles are groups of blocks of 32 inputs, in order:
//
//   group   | head: scales of its blocks | block | block | ...        all parts whole lines of 64 bytes
//   block   lines of 16 columns x 4 bytes: byte i of column c in line j is about input 4 j + i of the block
//
//     nibbles (4 lines)     low half: input 4 j + i, high half: input 4 j + i + 16
//     bit planes (1 line)   bit g of a byte: the fifth bit of input 4 g + i
//     bit pairs (2 lines)   bits 2 g, 2 g + 1 of line h: the upper two bits of input 4 (4 h + g) + i
//     bytes (8 lines)       input 4 j + i, plus 128
//
//   heads   blocks of 32 without a minimum   two blocks a group: [2][16] f16 scales
//           blocks of 32 with a minimum      one block a group: [16] f16 scales, [16] f16 minima
//           blocks of 256                    [16] f16 d, [16] f16 dmin (Q6_K: unused); then for each of the 8 blocks
//                                            [16] u8 scales, [16] u8 minima (Q6_K: [2][16] i8 scales of its halves)
//
// A weight is then an unsigned number of up to 8 bits, less an offset for signed types. The last group may have fewer
// blocks than others. Dense tiles are [inputs][16] in the file's own type.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/blocks.h"

namespace quire::ops {

inline constexpr int64_t kTileColumns = 16;
inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kLine = 64;

struct PackedLayout {
  int32_t group_blocks;
  int32_t head_bytes;
  int32_t block_bytes;
  int32_t offset;      // weight = stored number - offset
  bool minimum;        // the type has minima
  int32_t scales = 1;  // in a block: 2 when halves of 16 inputs have their own

  constexpr int64_t group_bytes() const { return head_bytes + int64_t{group_blocks} * block_bytes; }
  constexpr int64_t head(int64_t block) const { return block / group_blocks * group_bytes(); }
  constexpr int64_t body(int64_t block) const { return head(block) + head_bytes + block % group_blocks * block_bytes; }
};

constexpr bool is_dense(BlockType type) {
  return type == BlockType::f32 || type == BlockType::f16 || type == BlockType::bf16;
}

// Of a quantised type.
constexpr PackedLayout layout_of(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return {.group_blocks = 2, .head_bytes = 64, .block_bytes = 512, .offset = 128, .minimum = false};
    case BlockType::q4_0:
      return {.group_blocks = 2, .head_bytes = 64, .block_bytes = 256, .offset = 8, .minimum = false};
    case BlockType::q5_0:
      return {.group_blocks = 2, .head_bytes = 64, .block_bytes = 320, .offset = 16, .minimum = false};
    case BlockType::q4_1:
      return {.group_blocks = 1, .head_bytes = 64, .block_bytes = 256, .offset = 0, .minimum = true};
    case BlockType::q5_1:
      return {.group_blocks = 1, .head_bytes = 64, .block_bytes = 320, .offset = 0, .minimum = true};
    case BlockType::q4_k:
      return {.group_blocks = 8, .head_bytes = 320, .block_bytes = 256, .offset = 0, .minimum = true};
    case BlockType::q5_k:
      return {.group_blocks = 8, .head_bytes = 320, .block_bytes = 320, .offset = 0, .minimum = true};
    case BlockType::q6_k:
      return {.group_blocks = 8, .head_bytes = 320, .block_bytes = 384, .offset = 32, .minimum = false, .scales = 2};
    default:
      return {};
  }
}

// Bytes of one tile; inputs are whole blocks of a quantised type.
constexpr int64_t tile_bytes(BlockType type, int64_t inputs) {
  if (is_dense(type)) {
    const int64_t bytes = inputs * kTileColumns * (type == BlockType::f32 ? 4 : 2);
    return (bytes + kLine - 1) / kLine * kLine;
  }
  const PackedLayout layout = layout_of(type);
  const int64_t blocks = inputs / kBlockInputs, rest = blocks % layout.group_blocks;
  return layout.head(blocks) + (rest ? layout.head_bytes + rest * layout.block_bytes : 0);
}

// Columns [first, first + 16) of the weights, laid out as said above; columns that do not exist become zeros. `tile`
// has tile_bytes(type, inputs) bytes; what the layout leaves unused is not written.
struct WeightView;
void pack_tile(const WeightView& weights, int64_t first, std::byte* tile);

}  // namespace quire::ops
