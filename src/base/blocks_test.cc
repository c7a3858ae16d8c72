#include "base/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/types.h"

namespace quire {
namespace {

using Bytes = std::vector<uint8_t>;

double half_at(const uint8_t* block, int at) {
  return to_float(f16{static_cast<uint16_t>(block[at] + block[at + 1] * 256)});
}

// `width` bits from bit `first` on, bit 0 being the lowest of the first byte.
int bits_at(const uint8_t* bytes, int first, int width) {
  int value = 0;
  for (int bit = 0; bit < width; ++bit) value += (bytes[(first + bit) / 8] >> (first + bit) % 8 & 1) << bit;
  return value;
}

// The 6-bit numbers of Q4_K and Q5_K: scales at 0, minima at 4.
int packed_at(const uint8_t* packed, int kind, int group) {
  if (group < 4) return bits_at(packed, (kind + group) * 8, 6);
  return bits_at(packed, (group + 4) * 8 + kind, 4) + 16 * bits_at(packed, (group - 4 + kind) * 8 + 6, 2);
}

// Element e of a block, from the places of its bits. All products are exact in double, so each result is rounded once,
// as it is in float, where products of the scales with small integers are exact too.
double meaning(BlockType type, const uint8_t* b, int e) {
  const int column = e % 16 * 8 + e / 16 * 4;                           // the nibble of element e in a block of 32
  const int pair_column = (e / 64 * 32 + e % 32) * 8 + e / 32 % 2 * 4;  // and in a block of 256
  switch (type) {
    case BlockType::f32: {
      float value;
      std::memcpy(&value, b, sizeof(value));
      return value;
    }
    case BlockType::f16:
      return half_at(b, 0);
    case BlockType::bf16:
      return to_float(bf16{static_cast<uint16_t>(b[0] + b[1] * 256)});
    case BlockType::q8_0:
      return half_at(b, 0) * static_cast<int8_t>(b[2 + e]);
    case BlockType::q4_0:
      return half_at(b, 0) * (bits_at(b + 2, column, 4) - 8);
    case BlockType::q4_1:
      return half_at(b, 0) * bits_at(b + 4, column, 4) + half_at(b, 2);
    case BlockType::q5_0:
      return half_at(b, 0) * (bits_at(b + 6, column, 4) + 16 * bits_at(b + 2, e, 1) - 16);
    case BlockType::q5_1:
      return half_at(b, 0) * (bits_at(b + 8, column, 4) + 16 * bits_at(b + 4, e, 1)) + half_at(b, 2);
    case BlockType::q4_k:
      return half_at(b, 0) * packed_at(b + 4, 0, e / 32) * bits_at(b + 16, pair_column, 4) -
             half_at(b, 2) * packed_at(b + 4, 4, e / 32);
    case BlockType::q5_k: {
      const int quant = bits_at(b + 48, pair_column, 4) + 16 * bits_at(b + 16, e % 32 * 8 + e / 32, 1);
      return half_at(b, 0) * packed_at(b + 4, 0, e / 32) * quant - half_at(b, 2) * packed_at(b + 4, 4, e / 32);
    }
    case BlockType::q6_k: {
      const int half = e / 128, within = e % 128;
      const int low = bits_at(b + half * 64, within % 64 * 8 + within / 64 * 4, 4);
      const int high = bits_at(b + 128 + half * 32, within % 32 * 8 + within / 32 * 2, 2);
      return half_at(b, 208) * static_cast<int8_t>(b[192 + e / 16]) * (low + 16 * high - 32);
    }
    case BlockType::f8_e4m3:
      return to_float(f8e4m3{b[0]});
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::vector<float> dequantised(BlockType type, const Bytes& bytes) {
  const BlockShape shape = shape_of(type);
  std::vector<float> out(bytes.size() / static_cast<size_t>(shape.bytes) * static_cast<size_t>(shape.elements));
  dequantise(type, reinterpret_cast<const std::byte*>(bytes.data()), out);
  return out;
}

Bytes random_bytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

bool same_number(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

class EveryBlockType : public testing::TestWithParam<BlockType> {};
INSTANTIATE_TEST_SUITE_P(Blocks, EveryBlockType, testing::ValuesIn(kBlockTypes),
                         [](const auto& type) { return to_string(type.param); });

TEST_P(EveryBlockType, RandomBytesMeanWhatTheirBitsSay) {
  const BlockType type = GetParam();
  const BlockShape shape = shape_of(type);
  constexpr int kBlocks = 500;
  const Bytes bytes = random_bytes(static_cast<size_t>(kBlocks * shape.bytes), 7);
  const std::vector<float> out = dequantised(type, bytes);
  ASSERT_EQ(out.size(), static_cast<size_t>(kBlocks * shape.elements));
  for (int block = 0; block < kBlocks; ++block)
    for (int e = 0; e < shape.elements; ++e) {
      const auto expected = static_cast<float>(meaning(type, bytes.data() + block * shape.bytes, e));
      const float got = out[static_cast<size_t>(block * shape.elements + e)];
      ASSERT_TRUE(same_number(got, expected))
          << "block " << block << " element " << e << ": " << got << " " << expected;
    }
}

TEST_P(EveryBlockType, BlocksNeedNoAlignment) {
  const BlockType type = GetParam();
  const Bytes bytes = random_bytes(static_cast<size_t>(shape_of(type).bytes * 3), 9);
  Bytes shifted(1);
  shifted.insert(shifted.end(), bytes.begin(), bytes.end());
  const std::vector<float> expected = dequantised(type, bytes);
  std::vector<float> out(expected.size());
  dequantise(type, reinterpret_cast<const std::byte*>(shifted.data() + 1), out);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(same_number(out[i], expected[i])) << i;
}

TEST_P(EveryBlockType, CountsBytesOfWholeBlocksOnly) {
  const BlockType type = GetParam();
  const BlockShape shape = shape_of(type);
  EXPECT_EQ(bytes_of(type, 0), 0);
  EXPECT_EQ(bytes_of(type, int64_t{7} * shape.elements), int64_t{7} * shape.bytes);
  expect_refused([&] { bytes_of(type, -shape.elements); }, "are not whole blocks");
  if (shape.elements == 1) return;
  expect_refused([&] { bytes_of(type, shape.elements + 1); }, "are not whole blocks");
  std::vector<float> part(static_cast<size_t>(shape.elements) - 1);
  expect_refused([&] { dequantise(type, nullptr, part); }, "are not whole blocks");
}

TEST_P(EveryBlockType, NothingIsDequantisedToNothing) { dequantise(GetParam(), nullptr, {}); }

TEST(Blocks, BytesBeyond64BitsAreRefused) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  expect_refused([&] { bytes_of(BlockType::f32, most); }, "more bytes than 64 bits count");
  EXPECT_EQ(bytes_of(BlockType::f32, most / 4), most / 4 * 4);
  EXPECT_EQ(bytes_of(BlockType::q4_0, most / 32 * 32), most / 32 * 18);
}

TEST(Blocks, NamesAndSizesAreThoseOfTheFormat) {
  EXPECT_STREQ(to_string(BlockType::bf16), "BF16");
  EXPECT_STREQ(to_string(BlockType::q4_k), "Q4_K");
  const int32_t bytes[] = {4, 2, 2, 34, 18, 20, 22, 24, 144, 176, 210};
  for (const BlockType type : kBlockTypes) EXPECT_EQ(shape_of(type).bytes, bytes[static_cast<int>(type)]);
  expect_refused([] { shape_of(static_cast<BlockType>(200)); }, "block type 200");
}

TEST(Blocks, EveryHalfIsWidenedExactly) {
  Bytes bytes(2 * 65536);
  for (size_t i = 0; i < 65536; ++i) {
    bytes[2 * i] = static_cast<uint8_t>(i);
    bytes[2 * i + 1] = static_cast<uint8_t>(i >> 8);
  }
  const std::vector<float> out = dequantised(BlockType::f16, bytes);
  for (size_t i = 0; i < 65536; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(to_float(f16{static_cast<uint16_t>(i)}))) << i;
}

// Worked by hand: scale 0.5, least -1, the nibbles 0 to 15 twice.
TEST(Blocks, AQ4_1BlockByHand) {
  Bytes block = {0x00, 0x38, 0x00, 0xbc};
  for (int i = 0; i < 16; ++i) block.push_back(static_cast<uint8_t>(i | i << 4));
  const std::vector<float> out = dequantised(BlockType::q4_1, block);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 0.5f * static_cast<float>(i % 16) - 1);
}

}  // namespace
}  // namespace quire
