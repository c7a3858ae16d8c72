// The numbers below are places in the file's blocks; base/blocks.cc says what lies there.
#include <cstring>

#include "ops/matmul.h"
#include "ops/packed_layout.h"

namespace quire::ops {
namespace {

constexpr std::byte kNoBlock[256] = {};  // as many zeros as the largest block has bytes

// The 16 columns of a tile; those that do not exist repeat a block of zeros.
struct Columns {
  Columns(const WeightView& weights, int64_t first) {
    const int64_t row_bytes = bytes_of(weights.type, weights.inputs), block_bytes = shape_of(weights.type).bytes;
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

// Byte i of the result: bits i, i + 4, i + 8, ... of x.
uint32_t bit_planes(uint32_t x) {
  uint32_t planes = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t bits = x >> i & 0x11111111u;
    bits = (bits | bits >> 3) & 0x03030303u;
    bits = (bits | bits >> 6) & 0x000f000fu;
    planes |= ((bits | bits >> 12) & 0xffu) << 8 * i;
  }
  return planes;
}

// --- blocks of 32

template <BlockType T>
void pack_block(const Columns& columns, int64_t b, std::byte* tile) {
  constexpr PackedLayout kLayout = layout_of(T);
  constexpr bool kFifth = T == BlockType::q5_0 || T == BlockType::q5_1;
  constexpr int kFifthBits = kLayout.minimum ? 4 : 2, kNibbles = kFifthBits + (kFifth ? 4 : 0);
  std::byte* scales = tile + kLayout.head(b) + b % kLayout.group_blocks * 32;
  std::byte* body = tile + kLayout.body(b);
  for (int64_t c = 0; c < kTileColumns; ++c) {
    const std::byte* block = columns.block(c, b);
    put_half(scales, c, block);
    if (kLayout.minimum) put_half(scales + 32, c, block + 2);
    if constexpr (T == BlockType::q8_0) {
      for (int j = 0; j < 8; ++j) put_word(body + j * kLine, c, word(block + 2 + 4 * j) ^ 0x80808080u);  // plus 128
    } else {
      for (int j = 0; j < 4; ++j) put_word(body + j * kLine, c, word(block + kNibbles + 4 * j));
      if (kFifth) put_word(body + 4 * kLine, c, bit_planes(word(block + kFifthBits)));
    }
  }
}

// --- blocks of 256

// Line j of nibbles from 32 bytes that hold other nibbles too.
uint32_t joined_nibbles(const std::byte* bytes, int shift, int j) {
  constexpr uint32_t kLow = 0x0f0f0f0fu;
  return (word(bytes + 4 * j) >> shift & kLow) | (word(bytes + 16 + 4 * j) >> shift & kLow) << 4;
}

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
    for (int g = 0; g < 8; ++g) {
      std::byte* body = tile + kLayout.body(b * 8 + g);
      const std::byte* nibbles = block + kNibbles + g / 2 * 32;
      for (int j = 0; j < 4; ++j) put_word(body + j * kLine, c, joined_nibbles(nibbles, g % 2 * 4, j));
      if (T != BlockType::q5_k) continue;
      uint32_t planes = 0;
      for (int j = 0; j < 8; ++j) planes |= (word(block + kFifthBits + 4 * j) >> g & 0x01010101u) << j;
      put_word(body + 4 * kLine, c, planes);
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
      std::byte* body = tile + kLayout.body(b * 8 + run);
      const std::byte* nibbles = block + half * 64 + quarter % 2 * 32;
      const std::byte* high_bits = block + kHighBits + half * 32;
      for (int j = 0; j < 4; ++j) put_word(body + j * kLine, c, joined_nibbles(nibbles, quarter / 2 * 4, j));
      for (int h = 0; h < 2; ++h) {
        uint32_t pairs = 0;
        for (int j = 0; j < 4; ++j)
          pairs |= (word(high_bits + 16 * h + 4 * j) >> (quarter * 2) & 0x03030303u) << (2 * j);
        put_word(body + (4 + h) * kLine, c, pairs);
      }
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
  }
}

}  // namespace quire::ops
