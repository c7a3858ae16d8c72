// What lies in a tile of packed weights: 16 output columns over all inputs, the same for every instruction set.
//
// Quantised tiles are groups of blocks of 32 inputs, in order:
//
//   group   | head: scales of its blocks | block | block | ...        all parts whole lines of 64 bytes
//   block   as many lines as a number has bits, of 16 columns x 4 bytes. Number g of eight is inputs 4 g to 4 g + 3 of
//           the block, input 4 g + i in bits of byte i of each column: pieces_of() says which bits of which lines.
//           Numbers of 5 and 6 bits lie alone in the low bits of a line, as many as there are lines, and the others are
//           put together from what is left above them. Bytes (Q8_0) have 128 added.
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

  constexpr int bits() const { return static_cast<int>(block_bytes / 64); }  // of a number
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

// A number is its pieces, or'ed: of the line's bytes, moved right by `right` bits, those in the mask.
struct Piece {
  int line, right, mask;
};
struct Pieces {
  int count;
  Piece at[3];
};
constexpr Pieces pieces_of(int bits, int number) {
  if (bits == 4) return {1, {{number % 4, number / 4 * 4, 0x0f}}};
  if (number < bits) return {1, {{number, 0, (1 << bits) - 1}}};
  const int first = (number - bits) * (bits - 3);  // of the lines whose upper bits it has
  if (bits == 6) return {3, {{first, 6, 0x03}, {first + 1, 4, 0x0c}, {first + 2, 2, 0x30}}};
  if (number < 7) return {2, {{first, 5, 0x07}, {first + 1, 3, 0x18}}};
  return {3, {{4, 5, 0x07}, {1, 2, 0x08}, {3, 1, 0x10}}};
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
