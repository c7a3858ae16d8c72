#include "kv/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

namespace quire::kv {
namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3};

// The element-by-element meaning that convert_elements must equal bit for bit.
std::vector<std::byte> converted_one_by_one(Dtype from, const std::vector<std::byte>& source, Dtype to, float scale) {
  const int64_t count = std::ssize(source) / size_of(from);
  std::vector<std::byte> target(count * size_of(to));
  // Two loops, because compilers turn a choice between x / scale and x into a division by scale or 1, and even that
  // makes a signalling NaN quiet.
  if (scale == 1)
    for (int64_t i = 0; i < count; ++i) store_element(to, target.data(), i, load_element(from, source.data(), i));
  else
    for (int64_t i = 0; i < count; ++i)
      store_element(to, target.data(), i, load_element(from, source.data(), i) / scale);
  return target;
}

void expect_equal_bits(Dtype from, const std::vector<std::byte>& source, Dtype to, float scale) {
  SCOPED_TRACE(cat(from, " to ", to, " with scale ", scale));
  const int64_t count = std::ssize(source) / size_of(from);
  const std::vector<std::byte> expected = converted_one_by_one(from, source, to, scale);
  std::vector<std::byte> actual(expected.size());
  convert_elements(from, source.data(), to, actual.data(), count, scale);
  for (int64_t i = 0; i < count; ++i)
    ASSERT_EQ(std::memcmp(&actual[i * size_of(to)], &expected[i * size_of(to)], size_of(to)), 0)
        << "element " << i << ", " << load_element(from, source.data(), i);
}

void append_float(std::vector<std::byte>& bytes, uint32_t bits) {
  bytes.resize(bytes.size() + sizeof bits);
  std::memcpy(bytes.data() + bytes.size() - sizeof bits, &bits, sizeof bits);
}

// Every value of the narrow type, the middle between it and the next, and the floats on both sides of each:
// where rounding goes wrong if it does.
std::vector<std::byte> floats_around(Dtype narrow) {
  std::vector<std::byte> bytes;
  const uint32_t patterns = 1u << (8 * size_of(narrow));
  for (uint32_t pattern = 0; pattern + 1 < patterns; ++pattern) {
    const uint32_t pair[] = {pattern, pattern + 1};
    const float low = load_element(narrow, &pair[0], 0);  // on a little-endian machine, like the types' storage
    const float high = load_element(narrow, &pair[1], 0);
    for (const float x : {low, low / 2 + high / 2})
      for (const int step : {-1, 0, 1}) append_float(bytes, std::bit_cast<uint32_t>(x) + static_cast<uint32_t>(step));
  }
  return bytes;
}

TEST(ConvertElements, RoundsLikeTheElementFunctionsAroundEveryNarrowValue) {
  for (const Dtype narrow : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3})
    expect_equal_bits(Dtype::f32, floats_around(narrow), narrow, 1);
}

TEST(ConvertElements, RoundsLikeTheElementFunctionsAcrossAllFloats) {
  std::vector<std::byte> bytes;
  constexpr uint64_t kStride = 4099;  // odd, so that all the low bits occur too
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStride) append_float(bytes, static_cast<uint32_t>(bits));
  for (const Dtype narrow : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) expect_equal_bits(Dtype::f32, bytes, narrow, 1);
  for (const float scale : {0.01f, 3.0f, 1e-30f}) expect_equal_bits(Dtype::f32, bytes, Dtype::f8e4m3, scale);
}

TEST(ConvertElements, ConvertsEveryNarrowPatternToEveryOtherType) {
  for (const Dtype from : {Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) {
    const size_t patterns = size_t{1} << (8 * size_of(from));
    std::vector<std::byte> bytes(patterns * static_cast<size_t>(size_of(from)));
    for (size_t pattern = 0; pattern < patterns; ++pattern)
      std::memcpy(&bytes[pattern * size_of(from)], &pattern, size_of(from));
    for (const Dtype to : kTypes)
      if (from != to) expect_equal_bits(from, bytes, to, 1);
    expect_equal_bits(from, bytes, Dtype::f8e4m3, 0.7f);
  }
}

TEST(ConvertElements, CopiesTheBitsBetweenEqualTypes) {
  for (const Dtype type : kTypes) {
    std::vector<std::byte> source(64 * size_of(type));
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(255 - i);  // NaNs with payloads too
    std::vector<std::byte> target(source.size());
    convert_elements(type, source.data(), type, target.data(), 64, 1);
    EXPECT_EQ(source, target);
  }
}

TEST(ConvertElements, WritesExactlyCountElements) {
  const std::vector<float> source(600, 1.5f);
  for (const int64_t count : {0, 1, 7, 255, 256, 257, 511, 600}) {
    for (const Dtype to : kTypes) {
      std::vector<std::byte> target(600 * size_of(to), std::byte{0xa5});
      convert_elements(Dtype::f32, reinterpret_cast<const std::byte*>(source.data()), to, target.data(), count, 1);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(load_element(to, target.data(), i), 1.5f);
      for (size_t i = count * size_of(to); i < target.size(); ++i) ASSERT_EQ(target[i], std::byte{0xa5});
    }
  }
}

}  // namespace
}  // namespace quire::kv
