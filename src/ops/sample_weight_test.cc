#include "ops/sample_weight.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using namespace testing;

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

TEST(RandomBits, AreTheFirstTwoWords) { EXPECT_EQ(random_bits(0, 0), 0x6627e8d5e169c58d); }

TEST(RandomBits, DifferInEveryHalfOfSeedAndPosition) {
  const std::set<uint64_t> values = {random_bits(1, 0), random_bits(0, 1), random_bits(uint64_t{1} << 32, 0),
                                     random_bits(0, uint64_t{1} << 32), random_bits(0, 0)};
  EXPECT_EQ(values.size(), 5u);
}

TEST(RandomBits, FillTheirRangeEvenly) {
  int counts[10] = {};
  for (uint64_t i = 0; i < 10'000; ++i) ++counts[draw_threshold(random_bits(7, i), 10)];
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom, one in a thousand
}

double weight_of(float logit, const WeightScale& scale) {
  double weight;
  two_to<double, uint64_t>(weight_exponent(logit, scale), weight);
  return weight;
}

TEST(TwoTo, IsTheExponential) {
  const WeightScale scale{0, std::numbers::log2e};
  for (float x = 0; x > -600; x = x * 1.001f - 0.0001f)
    ASSERT_NEAR(weight_of(x, scale) / std::exp(double{x}), 1, 1e-12) << x;
}

TEST(TwoTo, ExactValues) {
  EXPECT_EQ(weight_of(3.25f, {3.25, 17}), 1.0);
  EXPECT_EQ(weight_of(-kInfinity, {3.25, 17}), 0.0);
  EXPECT_EQ(weight_of(-1001, {0, 1}), 0.0);
  EXPECT_EQ(weight_of(-1, {0, 1e45}), 0.0);
  EXPECT_EQ(weight_of(-7, {0, 1}), 0x1p-7);
}

TEST(FixedWeight, IsTheWeightRoundedToTheNearest) {
  const WeightScale scale{0, std::numbers::log2e};
  for (float x = 0; x > -40; x = x * 1.001f - 0.0001f)
    ASSERT_EQ(fixed_weight(x, scale), static_cast<uint64_t>(std::nearbyint(weight_of(x, scale) * 0x1p40))) << x;
}

TEST(FixedWeight, ExactValues) {
  EXPECT_EQ(fixed_weight(3.25f, {3.25, 17}), kWeightOne);
  EXPECT_EQ(fixed_weight(-1, {0, 1}), kWeightOne / 2);
  EXPECT_EQ(fixed_weight(-40, {0, 1}), 1u);
  EXPECT_EQ(fixed_weight(-41, {0, 1}), 0u);  // a tie goes to the even one
  EXPECT_EQ(fixed_weight(-40.9f, {0, 1}), 1u);
  EXPECT_EQ(fixed_weight(-kInfinity, {0, 1}), 0u);
  EXPECT_EQ(weight_scale(2, 0.5f).per_logit, 2 * std::numbers::log2e);
}

TEST(TopPWeight, IsTheProductRoundedUp) {
  EXPECT_EQ(top_p_weight(0.5f, 4), 2u);
  EXPECT_EQ(top_p_weight(0.5f, 5), 3u);
  EXPECT_EQ(top_p_weight(0x0.ffffffp0f, 1 << 24), (1u << 24) - 1);
  EXPECT_EQ(top_p_weight(0x0.ffffffp0f, 1 << 23), 1u << 23);
  EXPECT_EQ(top_p_weight(0x1p-64f, 1), 1u);
  EXPECT_EQ(top_p_weight(0x1p-65f, 1), 0u);
  EXPECT_EQ(top_p_weight(0.75f, uint64_t{1} << 63), uint64_t{3} << 61);
}

TEST(MinPWeight, IsTheProductRoundedUp) {
  EXPECT_EQ(min_p_weight(0), 0u);
  EXPECT_EQ(min_p_weight(1e-45f), 1u);
  EXPECT_EQ(min_p_weight(0.25f), kWeightOne / 4);
  EXPECT_EQ(min_p_weight(1), kWeightOne);
}

TEST(DrawThreshold, IsBelowTheTotal) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max(), kTotal = kWeightOne * kMostWeights;
  EXPECT_EQ(draw_threshold(0, kTotal), 0u);
  EXPECT_EQ(draw_threshold(kMost, kTotal), kTotal - 1);
  EXPECT_EQ(draw_threshold(kMost / 2 + 1, 3), 1u);
  EXPECT_EQ(draw_threshold(kMost, 1), 0u);
}

}  // namespace
}  // namespace quire::ops
