#include "base/blocks.h"

#include <bit>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/check.h"
#include "base/types.h"

namespace quire {
namespace {

// The blocks as they lie in files. Every member is an array of bytes, so a block has no padding and needs no alignment.
using Half = uint8_t[2];

struct Q8_0 {
  Half scale;
  int8_t quants[32];
};
struct Q4_0 {
  Half scale;
  uint8_t nibbles[16];  // byte i: element i below, element i + 16 above
};
struct Q4_1 {
  Half scale, least;
  uint8_t nibbles[16];
};
struct Q5_0 {
  Half scale;
  uint8_t fifth_bits[4];  // bit i of the little-endian word: element i
  uint8_t nibbles[16];
};
struct Q5_1 {
  Half scale, least;
  uint8_t fifth_bits[4];
  uint8_t nibbles[16];
};
struct Q4_K {
  Half scale, least;
  uint8_t packed[12];      // 6-bit scales and minima of the 8 groups of 32
  uint8_t nibbles[4][32];  // of groups 2p (below) and 2p + 1 (above)
};
struct Q5_K {
  Half scale, least;
  uint8_t packed[12];
  uint8_t fifth_bits[32];  // bit g of byte i: element i of group g
  uint8_t nibbles[4][32];
};
struct Q6_K {
  uint8_t nibbles[2][64];    // of each half of the block: quarters 0 and 1 below, 2 and 3 above
  uint8_t high_bits[2][32];  // two bits for each quarter, quarter 0 lowest
  int8_t scales[16];         // of groups of 16
  Half scale;
};

struct Description {
  const char* name;
  BlockShape shape;
};
// In the order of BlockType.
constexpr Description kDescriptions[] = {
    {"F32", {1, 4}},
    {"F16", {1, 2}},
    {"BF16", {1, 2}},
    {"Q8_0", {32, sizeof(Q8_0)}},
    {"Q4_0", {32, sizeof(Q4_0)}},
    {"Q4_1", {32, sizeof(Q4_1)}},
    {"Q5_0", {32, sizeof(Q5_0)}},
    {"Q5_1", {32, sizeof(Q5_1)}},
    {"Q4_K", {256, sizeof(Q4_K)}},
    {"Q5_K", {256, sizeof(Q5_K)}},
    {"Q6_K", {256, sizeof(Q6_K)}},
    {"F8_E4M3", {1, 1}},
};
static_assert(std::size(kDescriptions) == std::size(kBlockTypes) + 1);

const Description& description(BlockType type) {
  const auto index = static_cast<size_t>(type);
  check(index < std::size(kDescriptions), "block type ", index, " does not exist");
  return kDescriptions[index];
}

float number(const Half& bytes) { return to_float(f16{static_cast<uint16_t>(bytes[0] | bytes[1] << 8)}); }

// --- blocks of 32

void expand(const Q8_0& block, float* out) {
  const float scale = number(block.scale);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.quants[i]) * scale;
}

void expand(const Q4_0& block, float* out) {
  const float scale = number(block.scale);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((block.nibbles[i] & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((block.nibbles[i] >> 4) - 8) * scale;
  }
}

void expand(const Q4_1& block, float* out) {
  const float scale = number(block.scale), least = number(block.least);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(block.nibbles[i] & 15) * scale + least;
    out[i + 16] = static_cast<float>(block.nibbles[i] >> 4) * scale + least;
  }
}

// The quants [0, 32) of 32 elements whose fifth bits lie apart.
void join_fifth_bits(const uint8_t (&nibbles)[16], const uint8_t (&fifth_bits)[4], int (&quants)[32]) {
  uint32_t bits;
  std::memcpy(&bits, fifth_bits, sizeof(bits));
  for (int i = 0; i < 16; ++i) {
    quants[i] = static_cast<int>((nibbles[i] & 15) | (bits >> i & 1) << 4);
    quants[i + 16] = static_cast<int>((nibbles[i] >> 4) | (bits >> (i + 16) & 1) << 4);
  }
}

void expand(const Q5_0& block, float* out) {
  int quants[32];
  join_fifth_bits(block.nibbles, block.fifth_bits, quants);
  const float scale = number(block.scale);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(quants[i] - 16) * scale;
}

void expand(const Q5_1& block, float* out) {
  int quants[32];
  join_fifth_bits(block.nibbles, block.fifth_bits, quants);
  const float scale = number(block.scale), least = number(block.least);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(quants[i]) * scale + least;
}

// --- blocks of 256

struct GroupScale {
  float scale, least;
};

// The first four groups have their 6 bits in one byte; the last four have 4 bits in one byte and their upper 2 on top
// of the bytes of the first four.
template <class Block>
GroupScale group_scale(const Block& block, int group) {
  const uint8_t* packed = block.packed;
  int scale, least;
  if (group < 4) {
    scale = packed[group] & 63;
    least = packed[group + 4] & 63;
  } else {
    scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
    least = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
  }
  return {number(block.scale) * static_cast<float>(scale), number(block.least) * static_cast<float>(least)};
}

void expand(const Q4_K& block, float* out) {
  for (int group = 0; group < 8; ++group, out += 32) {
    const GroupScale own = group_scale(block, group);
    const uint8_t* nibbles = block.nibbles[group / 2];
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) out[i] = own.scale * static_cast<float>(nibbles[i] >> shift & 15) - own.least;
  }
}

void expand(const Q5_K& block, float* out) {
  for (int group = 0; group < 8; ++group, out += 32) {
    const GroupScale own = group_scale(block, group);
    const uint8_t* nibbles = block.nibbles[group / 2];
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int quant = (nibbles[i] >> shift & 15) | (block.fifth_bits[i] >> group & 1) << 4;
      out[i] = own.scale * static_cast<float>(quant) - own.least;
    }
  }
}

void expand(const Q6_K& block, float* out) {
  const float scale = number(block.scale);
  for (int run = 0; run < 8; ++run, out += 32) {  // four quarters of each half
    const int half = run / 4, quarter = run % 4;
    const uint8_t* nibbles = block.nibbles[half] + quarter % 2 * 32;
    const uint8_t* high_bits = block.high_bits[half];
    const float scales[2] = {scale * static_cast<float>(block.scales[run * 2]),
                             scale * static_cast<float>(block.scales[run * 2 + 1])};
    for (int i = 0; i < 32; ++i) {
      const int quant = (nibbles[i] >> (quarter / 2 * 4) & 15) | (high_bits[i] >> (quarter * 2) & 3) << 4;
      out[i] = scales[i / 16] * static_cast<float>(quant - 32);
    }
  }
}

template <class Block>
void expand_all(const std::byte* blocks, std::span<float> out, int32_t elements) {
  for (float* target = out.data(); target != out.data() + out.size(); target += elements, blocks += sizeof(Block))
    expand(*reinterpret_cast<const Block*>(blocks), target);
}

// --- single numbers

// Moving the exponent to float's place leaves it 112 too small, for denormals too, and a product repairs that exactly.
// Infinities and NaNs get their exponent back by hand, with a mask: a branch would keep the loop from being vectorised.
void widen_f16(const std::byte* source, std::span<float> out) {
  constexpr float kTwoTo112 = 0x1p112f;
  constexpr uint32_t kFirstSpecial = 0x7c00u << 13, kFloatInfinity = 0x7f80'0000;
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    const uint32_t moved = (bits & 0x7fffu) << 13;
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(moved) * kTwoTo112);
    const auto is_finite = static_cast<uint32_t>(static_cast<int32_t>(moved - kFirstSpecial) >> 31);  // all bits
    const uint32_t magnitude = (finite & is_finite) | ((moved | kFloatInfinity) & ~is_finite);
    out[i] = std::bit_cast<float>(magnitude | (bits & 0x8000u) << 16);
  }
}

// By a multiplication, which makes normal numbers of subnormal ones too.
void widen_f8(const std::byte* source, std::span<float> out) {
  constexpr float kTwoTo120 = 0x1p120f;
  constexpr uint32_t kMagnitude = 0x7f, kNan = 0x7f;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<uint32_t>(source[i]);
    const uint32_t magnitude = bits & kMagnitude;
    const float finite = std::bit_cast<float>(magnitude << 20) * kTwoTo120;
    const uint32_t number = magnitude == kNan ? 0x7fc0'0000u : std::bit_cast<uint32_t>(finite);
    out[i] = std::bit_cast<float>(number | (bits & 0x80u) << 24);
  }
}

void widen_bf16(const std::byte* source, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, source + i * sizeof(bits), sizeof(bits));
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

}  // namespace

const char* to_string(BlockType type) { return description(type).name; }

BlockShape shape_of(BlockType type) { return description(type).shape; }

int64_t bytes_of(BlockType type, int64_t elements) {
  const BlockShape block = shape_of(type);
  check(elements >= 0 && elements % block.elements == 0, elements, " elements are not whole blocks of ", block.elements,
        ", which ", type, " needs");
  const int64_t blocks = elements / block.elements;
  check(blocks <= std::numeric_limits<int64_t>::max() / block.bytes, elements, " elements of ", type,
        " have more bytes than 64 bits count");
  return blocks * block.bytes;
}

void dequantise(BlockType type, const std::byte* blocks, std::span<float> out) {
  const int32_t elements = shape_of(type).elements;
  const int64_t bytes = bytes_of(type, std::ssize(out));
  switch (type) {
    case BlockType::f32:
      if (bytes > 0) std::memcpy(out.data(), blocks, static_cast<size_t>(bytes));
      return;
    case BlockType::f16:
      return widen_f16(blocks, out);
    case BlockType::bf16:
      return widen_bf16(blocks, out);
    case BlockType::q8_0:
      return expand_all<Q8_0>(blocks, out, elements);
    case BlockType::q4_0:
      return expand_all<Q4_0>(blocks, out, elements);
    case BlockType::q4_1:
      return expand_all<Q4_1>(blocks, out, elements);
    case BlockType::q5_0:
      return expand_all<Q5_0>(blocks, out, elements);
    case BlockType::q5_1:
      return expand_all<Q5_1>(blocks, out, elements);
    case BlockType::q4_k:
      return expand_all<Q4_K>(blocks, out, elements);
    case BlockType::q5_k:
      return expand_all<Q5_K>(blocks, out, elements);
    case BlockType::q6_k:
      return expand_all<Q6_K>(blocks, out, elements);
    case BlockType::f8_e4m3:
      return widen_f8(blocks, out);
  }
}

}  // namespace quire
