// The numbers below are places in the file's blocks; base/blocks.cc says what lies there.
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/matmul.h"
#include "ops/packed_layout.h"

namespace quire::ops {
namespace {

constexpr std::byte kNoBlock[256] = {};  // as many zeros as the largest block has bytes

// The 16 columns of a tile; those that do not exist repeat a block of zeros.
struct Columns {
  Columns(const WeightView& weights, int64_t first) {
    const int64_t row_bytes = weights.row_stride(), block_bytes = shape_of(weights.type).bytes;
    for (int64_t c = 0; c < kTileColumns; ++c) {
      const bool exists = first + c < weights.outputs;
      column[c] = exists ? weights.data + (first + c) * row_bytes : kNoBlock;
      step[c] = exists ? block_bytes : 0;
    }
  }
  const std::byte* block(int64_t c, int64_t b) const { return column[c] + b * step[c]; }

  const std::byte* column[kTileColumns];
  int64_t step[kTileColumns];
};

uint32_t word(const std::byte* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}
void put_word(std::byte* line, int64_t column, uint32_t bits) { std::memcpy(line + column * 4, &bits, sizeof(bits)); }
void put_half(std::byte* halves, int64_t column, const std::byte* from) { std::memcpy(halves + column * 2, from, 2); }

constexpr uint32_t kEveryByte = 0x01010101u;

// A column of a block: its eight numbers, four bytes each, to their places in the lines.
template <int Bits>
void put_numbers(const uint32_t (&numbers)[8], int64_t column, std::byte* body) {
  uint32_t lines[Bits] = {};
  [&]<size_t... G>(std::index_sequence<G...>) {
    const auto put = [&](const Pieces& pieces, uint32_t number) {
      for (int p = 0; p < pieces.count; ++p) {
        const Piece& piece = pieces.at[p];
        lines[piece.line] |= (number & static_cast<uint32_t>(piece.mask) * kEveryByte) << piece.right;
      }
    };
    (put(pieces_of(Bits, static_cast<int>(G)), numbers[G]), ...);
  }
  (std::make_index_sequence<8>{});
  for (int line = 0; line < Bits; ++line) put_word(body + line * kLine, column, lines[line]);
}

// Four bits for each of a number's inputs.
uint32_t nibbles_of(const std::byte* bytes, int shift) { return word(bytes) >> shift & 0x0f * kEveryByte; }

// --- blocks of 32

// Bits 4 g to 4 g + 3 of x, one in each byte.
uint32_t bit_of_each(uint32_t x, int g) {
  const uint32_t four = x >> 4 * g & 15;
  return (four | four << 7 | four << 14 | four << 21) & kEveryByte;
}

template <BlockType T>
void pack_block(const Columns& columns, int64_t b, std::byte* tile) {
  constexpr PackedLayout kLayout = layout_of(T);
  constexpr bool kFifth = T == BlockType::q5_0 || T == BlockType::q5_1;
  constexpr int kFifthBits = kLayout.minimum ? 4 : 2, kNibbles = kFifthBits + (kFifth ? 4 : 0);
  std::byte* scales = tile + kLayout.head(b) + b % kLayout.group_blocks * 32;
  for (int64_t c = 0; c < kTileColumns; ++c) {
    const std::byte* block = columns.block(c, b);
    put_half(scales, c, block);
    if (kLayout.minimum) put_half(scales + 32, c, block + 2);
    uint32_t numbers[8];
    for (int g = 0; g < 8; ++g) {
      if constexpr (T == BlockType::q8_0) {
        numbers[g] = word(block + 2 + 4 * g) ^ 0x80 * kEveryByte;  // plus 128
      } else {
        numbers[g] = nibbles_of(block + kNibbles + g % 4 * 4, g / 4 * 4);
        if (kFifth) numbers[g] |= bit_of_each(word(block + kFifthBits), g) << 4;
      }
    }
    put_numbers<kLayout.bits()>(numbers, c, tile + kLayout.body(b));
  }
}

// --- blocks of 256

// Six bits for each of 8 scales and 8 minima, in 12 bytes; the upper two bits of the last four sit on top of the
// others.
void put_group_scales(const std::byte* packed, int64_t c, std::byte* scales) {
  const auto at = [&](int i) { return static_cast<int>(packed[i]); };
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? at(g) & 63 : (at(g + 4) & 15) | at(g - 4) >> 6 << 4;
    const int least = g < 4 ? at(g + 4) & 63 : at(g + 4) >> 4 | at(g) >> 6 << 4;
    scales[g * 32 + c] = static_cast<std::byte>(scale);
    scales[g * 32 + 16 + c] = static_cast<std::byte>(least);
  }
}

template <BlockType T>
void pack_block_of_256(const Columns& columns, int64_t b, std::byte* tile) requires(T != BlockType::q6_k) {
  constexpr PackedLayout kLayout = layout_of(T);
  constexpr int kFifthBits = 16, kNibbles = T == BlockType::q5_k ? 48 : 16;
  std::byte* head = tile + kLayout.head(b * 8);
  for (int64_t c = 0; c < kTileColumns; ++c) {
    const std::byte* block = columns.block(c, b);
    put_half(head, c, block);
    put_half(head + 32, c, block + 2);
    put_group_scales(block + 4, c, head + kLine);
    for (int run = 0; run < 8; ++run) {
      uint32_t numbers[8];
      for (int g = 0; g < 8; ++g) {
        numbers[g] = nibbles_of(block + kNibbles + run / 2 * 32 + 4 * g, run % 2 * 4);
        if (T == BlockType::q5_k) numbers[g] |= (word(block + kFifthBits + 4 * g) >> run & kEveryByte) << 4;
      }
      put_numbers<kLayout.bits()>(numbers, c, tile + kLayout.body(b * 8 + run));
    }
  }
}

template <BlockType T>
void pack_block_of_256(const Columns& columns, int64_t b, std::byte* tile) requires(T == BlockType::q6_k) {
  constexpr PackedLayout kLayout = layout_of(T);
  constexpr int kHighBits = 128, kScales = 192, kScale = 208;
  std::byte* head = tile + kLayout.head(b * 8);
  for (int64_t c = 0; c < kTileColumns; ++c) {
    const std::byte* block = columns.block(c, b);
    put_half(head, c, block + kScale);
    for (int g = 0; g < 16; ++g) head[kLine + g * 16 + c] = block[kScales + g];
    for (int run = 0; run < 8; ++run) {
      const int half = run / 4, quarter = run % 4;
      const std::byte* nibbles = block + half * 64 + quarter % 2 * 32;
      const std::byte* high_bits = block + kHighBits + half * 32;
      uint32_t numbers[8];
      for (int g = 0; g < 8; ++g)
        numbers[g] = nibbles_of(nibbles + 4 * g, quarter / 2 * 4) |
                     (word(high_bits + 4 * g) >> (quarter * 2) & 3 * kEveryByte) << 4;
      put_numbers<kLayout.bits()>(numbers, c, tile + kLayout.body(b * 8 + run));
    }
  }
}

// --- tiles

template <BlockType T>
void pack_blocks(const WeightView& weights, int64_t first, std::byte* tile) {
  const Columns columns(weights, first);
  const int64_t blocks = weights.inputs / shape_of(T).elements;
  for (int64_t b = 0; b < blocks; ++b) {
    if constexpr (layout_of(T).group_blocks == 8)
      pack_block_of_256<T>(columns, b, tile);
    else
      pack_block<T>(columns, b, tile);
  }
}

template <size_t Bytes>
void pack_elements(const WeightView& weights, int64_t first, std::byte* tile) {
  const Columns columns(weights, first);
  for (int64_t k = 0; k < weights.inputs; ++k)
    for (int64_t c = 0; c < kTileColumns; ++c, tile += Bytes) std::memcpy(tile, columns.block(c, k), Bytes);
}

}  // namespace

void pack_tile(const WeightView& weights, int64_t first, std::byte* tile) {
  switch (weights.type) {
    case BlockType::f32:
      return pack_elements<4>(weights, first, tile);
    case BlockType::f16:
    case BlockType::bf16:
      return pack_elements<2>(weights, first, tile);
    case BlockType::q8_0:
      return pack_blocks<BlockType::q8_0>(weights, first, tile);
    case BlockType::q4_0:
      return pack_blocks<BlockType::q4_0>(weights, first, tile);
    case BlockType::q4_1:
      return pack_blocks<BlockType::q4_1>(weights, first, tile);
    case BlockType::q5_0:
      return pack_blocks<BlockType::q5_0>(weights, first, tile);
    case BlockType::q5_1:
      return pack_blocks<BlockType::q5_1>(weights, first, tile);
    case BlockType::q4_k:
      return pack_blocks<BlockType::q4_k>(weights, first, tile);
    case BlockType::q5_k:
      return pack_blocks<BlockType::q5_k>(weights, first, tile);
    case BlockType::q6_k:
      return pack_blocks<BlockType::q6_k>(weights, first, tile);
    case BlockType::f8_e4m3:
      break;
  }
  throw CheckError(cat("a CPU does not multiply ", weights, " as it is"));
}

}  // namespace quire::ops
