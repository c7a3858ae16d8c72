#include "ops/philox.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/sample.h"

namespace quire::ops {
namespace {

using Four = std::array<uint32_t, 4>;

// The known answers that the generator's authors publish with it.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsTheFirst53Bits) { EXPECT_EQ(uniform(0, 0), static_cast<double>(0x6627e8d5e169c58d >> 11) * 0x1p-53); }

TEST(Uniform, DiffersInEveryHalfOfSeedAndPosition) {
  const std::set<double> values = {uniform(1, 0), uniform(0, 1), uniform(uint64_t{1} << 32, 0),
                                   uniform(0, uint64_t{1} << 32), uniform(0, 0)};
  EXPECT_EQ(values.size(), 5u);
}

TEST(Uniform, FillsTheUnitIntervalEvenly) {
  int counts[10] = {};
  for (uint64_t i = 0; i < 10'000; ++i) {
    const double u = uniform(7, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    ++counts[static_cast<int>(u * 10)];
  }
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom, one in a thousand
}

}  // namespace
}  // namespace quire::ops
