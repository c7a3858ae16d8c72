#include "serve/metrics_histogram.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/testing/expect_refused.h"

namespace quire::serve {
namespace {

TEST(Histogram, CountsUpToAndIncludingABound) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.5, 1.0, 1.5, 4.0, 4.1}) histogram.observe(value);
  const Histogram::Reading reading = histogram.read();
  EXPECT_EQ(reading.up_to, (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_DOUBLE_EQ(reading.sum, 11.1);
}

TEST(Histogram, ObservesOneValueManyTimes) {
  Histogram histogram({1});
  histogram.observe(0.25, 4);
  EXPECT_EQ(histogram.read().up_to, (std::vector<int64_t>{4, 4}));
  EXPECT_DOUBLE_EQ(histogram.read().sum, 1);
}

TEST(Histogram, LosesNothingBetweenThreads) {
  Histogram histogram({1, 3});
  constexpr int kEach = 20000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < kEach; ++n) histogram.observe(i);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.read().up_to, (std::vector<int64_t>{2 * kEach, 4 * kEach, 4 * kEach}));
  EXPECT_DOUBLE_EQ(histogram.read().sum, 6.0 * kEach);
}

TEST(Histogram, RefusesBoundsThatDoNotAscend) { EXPECT_THROW(Histogram({2, 1}), CheckError); }

}  // namespace
}  // namespace quire::serve
