#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/sample_weight.h"
#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using namespace testing;

const int32_t kCounts[] = {1, 5, 63, 64, 65, 200, 49152};

class LogitScanOf : public ::testing::TestWithParam<Isa> {
 protected:
  LogitScan scan_ = logit_scan(GetParam());
};

TEST_P(LogitScanOf, MaximaOfBlocks) {
  for (const int32_t count : kCounts) {
    const std::vector<float> logits = random_floats(static_cast<size_t>(count), 1, 9);
    std::vector<float> maxima(static_cast<size_t>(logit_blocks(count)));
    EXPECT_TRUE(scan_.maxima(logits.data(), count, maxima.data()));
    for (size_t block = 0; block < maxima.size(); ++block) {
      const auto first = logits.begin() + static_cast<int64_t>(block) * 64;
      ASSERT_EQ(maxima[block], *std::max_element(first, std::min(first + 64, logits.end())));
    }
  }
}

TEST_P(LogitScanOf, FindsBadNumbersAnywhere) {
  std::vector<float> maxima(4);
  for (const float bad : {kInfinity, std::nanf(""), -std::nanf("")})
    for (int32_t at = 0; at < 200; ++at) {
      std::vector<float> logits(200, std::numeric_limits<float>::max());
      logits[0] = logits[199] = -kInfinity;
      EXPECT_TRUE(scan_.maxima(logits.data(), 200, maxima.data()));
      logits[at] = bad;
      EXPECT_FALSE(scan_.maxima(logits.data(), 200, maxima.data())) << bad << " at " << at;
    }
}

TEST_P(LogitScanOf, SumsOfWeights) {
  for (const int32_t count : kCounts)
    for (const double temperature : {0.01, 1.0, 100.0}) {
      std::vector<float> logits = random_floats(static_cast<size_t>(count), 2, 9);
      logits[count / 2] = -kInfinity;
      const WeightScale scale{20, std::numbers::log2e / temperature};
      std::vector<double> sums(static_cast<size_t>(logit_blocks(count)));
      scan_.sums(logits.data(), count, scale, sums.data());
      for (size_t block = 0; block < sums.size(); ++block) {
        double expected = 0;
        for (size_t i = block * 64; i < std::min<size_t>(block * 64 + 64, logits.size()); ++i)
          expected += std::exp((double{logits[i]} - 20) / temperature);
        ASSERT_NEAR(sums[block], expected, 1e-11 * expected + 1e-290);
      }
    }
}

TEST_P(LogitScanOf, FixedSumsAreExact) {
  for (const int32_t count : kCounts)
    for (const double per_logit : {0.01, 1.7, 100.0}) {
      std::vector<float> logits = random_floats(static_cast<size_t>(count), 4, 9);
      logits[count / 2] = -kInfinity;
      const WeightScale scale{50, per_logit};
      std::vector<uint64_t> sums(static_cast<size_t>(logit_blocks(count))), expected(sums.size());
      for (size_t i = 0; i < logits.size(); ++i) expected[i / 64] += fixed_weight(logits[i], scale);
      std::vector<float> maxima(sums.size());
      scan_.maxima(logits.data(), count, maxima.data());
      scan_.fixed_sums(logits.data(), count, maxima.data(), scale, sums.data());
      ASSERT_EQ(sums, expected) << count;
    }
}

TEST_P(LogitScanOf, GivesTheBitsOfThePlainOne) {
  for (const int32_t count : kCounts) {
    const std::vector<float> logits = random_floats(static_cast<size_t>(count), 3, 9);
    std::vector<double> sums(static_cast<size_t>(logit_blocks(count))), plain(sums);
    scan_.sums(logits.data(), count, {25, 1.7}, sums.data());
    logit_scan(Isa::plain).sums(logits.data(), count, {25, 1.7}, plain.data());
    ASSERT_TRUE(same_bits(sums, plain)) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LogitScanOf, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return to_string(test.param); });

}  // namespace
}  // namespace quire::ops
