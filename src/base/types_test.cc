#include "base/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

namespace quire {
namespace {

template <class A, class B>
constexpr bool kConverts = std::is_convertible_v<A, B> || std::is_constructible_v<B, A> || std::is_assignable_v<B&, A>;
static_assert(!kConverts<PageId, TokenSlot> && !kConverts<TokenSlot, PageId>);
static_assert(!kConverts<PageId, RequestRow> && !kConverts<RequestRow, PageId>);
static_assert(!kConverts<PageId, TokenCount> && !kConverts<TokenCount, PageId>);
static_assert(!kConverts<TokenSlot, RequestRow> && !kConverts<RequestRow, TokenSlot>);
static_assert(!kConverts<TokenSlot, TokenCount> && !kConverts<TokenCount, TokenSlot>);
static_assert(!kConverts<RequestRow, TokenCount> && !kConverts<TokenCount, RequestRow>);
static_assert(!std::is_convertible_v<int, PageId> && !std::is_convertible_v<PageId, int>);

static_assert(PageSize(16).page_of({35}) == PageId{2});
static_assert(PageSize(16).slot({2}, 3) == TokenSlot{35});
static_assert(PageSize(16).pages_for(0) == 0 && PageSize(16).pages_for(16) == 1 && PageSize(16).pages_for(17) == 2);

// A narrow format as its definition reads, in double arithmetic and with a search in place of bit tricks.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // otherwise the top exponent holds numbers too, and only all ones is NaN

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  double value(uint32_t pattern) const {
    const uint32_t fraction = pattern & ((1u << mantissa_bits) - 1);
    const uint32_t top = (1u << exponent_bits) - 1;
    const uint32_t exponent = (pattern >> mantissa_bits) & top;
    const double sign = pattern >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (has_infinity && exponent == top)
      return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (!has_infinity && exponent == top && fraction == (1u << mantissa_bits) - 1)
      return std::numeric_limits<double>::quiet_NaN();
    const double scaled = std::ldexp(fraction, -mantissa_bits);
    return sign * (exponent ? std::ldexp(1 + scaled, static_cast<int>(exponent) - bias) : std::ldexp(scaled, 1 - bias));
  }
  uint32_t largest() const {
    const uint32_t all_ones = (1u << (exponent_bits + mantissa_bits)) - 1;
    return has_infinity ? all_ones - (1u << mantissa_bits) : all_ones - 1;
  }
};
constexpr Format kBf16{8, 7, true}, kF16{5, 10, true}, kF8{4, 3, false};

template <class Narrow>
float widen(uint32_t pattern) {
  return to_float(Narrow{static_cast<decltype(Narrow::bits)>(pattern)});
}
uint32_t narrow(const Format& format, float x) {
  if (format.bits() == 8) return to_f8e4m3(x).bits;
  return format.mantissa_bits == 7 ? to_bf16(x).bits : to_f16(x).bits;
}

template <class Narrow>
void every_pattern_survives(const Format& format) {
  for (uint32_t pattern = 0; pattern < 1u << format.bits(); ++pattern) {
    const double expected = format.value(pattern);
    const float got = widen<Narrow>(pattern);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << pattern;
      const uint32_t back = narrow(format, got);
      ASSERT_TRUE(std::isnan(format.value(back))) << pattern;
      ASSERT_EQ(back >> (format.bits() - 1), pattern >> (format.bits() - 1)) << "sign of NaN " << pattern;
      continue;
    }
    ASSERT_EQ(got, expected) << pattern;
    ASSERT_EQ(std::signbit(got), std::signbit(expected)) << pattern;
    ASSERT_EQ(narrow(format, got), pattern);
  }
}

TEST(Types, EveryBf16SurvivesFloat) { every_pattern_survives<bf16>(kBf16); }
TEST(Types, EveryF16SurvivesFloat) { every_pattern_survives<f16>(kF16); }
TEST(Types, EveryF8SurvivesFloat) { every_pattern_survives<f8e4m3>(kF8); }

// Between neighbours, the middle goes to the even pattern and one float to either side of it goes to the nearer.
// All middles are exact in float except those of bf16's denormals, whose halves are float denormals and exact too.
void ties_go_to_even(const Format& format) {
  for (uint32_t low = 0; low < format.largest(); ++low) {
    const uint32_t high = low + 1, even = low % 2 ? high : low;
    const double middle = (format.value(low) + format.value(high)) / 2;
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle);
    const uint32_t sign = 1u << (format.bits() - 1);
    ASSERT_EQ(narrow(format, tie), even) << low;
    ASSERT_EQ(narrow(format, -tie), even | sign) << low;
    ASSERT_EQ(narrow(format, std::nextafter(tie, 0.0f)), low) << low;
    ASSERT_EQ(narrow(format, std::nextafter(tie, INFINITY)), high) << low;
  }
}

TEST(Types, TiesGoToEven) {
  ties_go_to_even(kBf16);
  ties_go_to_even(kF16);
  ties_go_to_even(kF8);
}

TEST(Types, RandomFloatsRoundToTheNearest) {
  std::mt19937 random(7);
  for (const Format& format : {kBf16, kF16, kF8}) {
    for (int i = 0; i < 200'000; ++i) {
      const auto x = std::bit_cast<float>(static_cast<uint32_t>(random()));
      if (!std::isfinite(x) || std::fabs(x) > format.value(format.largest())) continue;
      const uint32_t magnitude = narrow(format, std::fabs(x));
      const double wide = std::fabs(x), error = std::fabs(format.value(magnitude) - wide);
      for (uint32_t neighbour : {magnitude - 1, magnitude + 1}) {
        if (neighbour > format.largest()) continue;  // also the one below zero
        ASSERT_LE(error, std::fabs(format.value(neighbour) - wide)) << x;
      }
    }
  }
}

TEST(Types, TooLargeBecomesInfinityOrSaturates) {
  const float huge = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_bf16(huge).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-infinity).bits, 0xff80);
  EXPECT_EQ(to_f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_f16(-huge).bits, 0xfc00);
  for (float x : {448.0f, 463.9f, 464.0f, 480.0f, huge, infinity}) {
    EXPECT_EQ(to_f8e4m3(x).bits, 0x7e) << x;
    EXPECT_EQ(to_f8e4m3(-x).bits, 0xfe) << x;
  }
}

TEST(Types, NanStaysNan) {
  for (uint32_t bits : {0x7f80'0001u, 0x7fc0'0000u, 0x7fff'ffffu, 0xff80'0001u, 0xffff'ffffu}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_f16(nan)))) << bits;
    EXPECT_TRUE(std::isnan(to_float(to_f8e4m3(nan)))) << bits;
  }
}

TEST(Types, ElementsAreStoredAndLoadedByType) {
  for (Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3}) {
    std::vector<unsigned char> array(static_cast<size_t>(4 * size_of(type)) + 1);
    void* unaligned = array.data() + 1;  // element access must not assume alignment
    for (int i = 0; i < 4; ++i) store_element(type, unaligned, i, 1.5f * static_cast<float>(i) - 2.0f);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(load_element(type, unaligned, i), 1.5f * static_cast<float>(i) - 2.0f);
  }
}

TEST(Types, PageSizeNamesTheSizesItTakes) {
  for (int tokens : {1, 16, 32, 64, 128}) EXPECT_EQ(1 << PageSize(tokens).shift(), tokens);
  for (int tokens : {0, -16, 2, 24, 256}) {
    try {
      PageSize page(tokens);
      ADD_FAILURE() << page.tokens();
    } catch (const CheckError& error) {
      EXPECT_EQ(error.what(), cat("page size ", tokens, " is not one of 1, 16, 32, 64, 128"));
    }
  }
}

}  // namespace
}  // namespace quire
