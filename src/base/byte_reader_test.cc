#include "base/byte_reader.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/testing/expect_refused.h"

namespace quire {
namespace {

ByteReader reader_of(const std::string& bytes) { return ByteReader(std::as_bytes(std::span(bytes))); }

TEST(ByteReader, ReadsLittleEndianNumbersInARow) {
  const std::string bytes("\x01\x02\x03\x04\xff\x00\x00\x80\x3f", 9);
  ByteReader reader = reader_of(bytes);
  EXPECT_EQ(reader.number<uint32_t>("a"), 0x04030201u);
  EXPECT_EQ(reader.number<int8_t>("b"), -1);
  EXPECT_EQ(reader.number<float>("c"), 1.0f);
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_EQ(reader.position(), 9u);
}

TEST(ByteReader, ReadsTextWithItsLengthInFront) {
  const std::string bytes("\x03\0\0\0\0\0\0\0abcd", 12);
  ByteReader reader = reader_of(bytes);
  EXPECT_EQ(reader.text("name"), "abc");
  EXPECT_EQ(reader.left(), 1u);
}

TEST(ByteReader, NeverReadsPastTheEndAndConsumesNothingWhenItRefuses) {
  const std::string bytes(7, '\xff');
  ByteReader reader = reader_of(bytes);
  expect_refused([&] { reader.number<uint64_t>("the offset"); },
                 "the offset of 8 bytes at byte 0 goes past the end, 7");
  expect_refused([&] { reader.take(std::numeric_limits<uint64_t>::max(), "all"); },
                 "all of 18446744073709551615 bytes");
  EXPECT_EQ(reader.position(), 0u);
}

TEST(ByteReader, ATextLengthNearTheLargestNumberDoesNotWrap) {
  for (const uint64_t length : {uint64_t{5}, std::numeric_limits<uint64_t>::max(), uint64_t{1} << 63}) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    bytes += "abcd";
    ByteReader reader = reader_of(bytes);
    expect_refused([&] { reader.text("name"); }, "name of " + std::to_string(length) + " bytes at byte 8");
    EXPECT_EQ(reader.position(), 0u);
  }
}

}  // namespace
}  // namespace quire
