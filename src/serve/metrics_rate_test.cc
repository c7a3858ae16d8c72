#include "serve/metrics_rate.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace quire::serve {
namespace {

TEST(Rate, IsWhatCameInTheLastSecondsPerSecond) {
  Rate rate;
  for (int tenth = 0; tenth < 100; ++tenth) rate.add(3, 100 + tenth * 0.1);
  EXPECT_NEAR(rate.per_second(109.95), 30, 0.5);
}

TEST(Rate, ForgetsWhatIsLongAgo) {
  Rate rate;
  rate.add(1000, 50.5);
  EXPECT_GT(rate.per_second(55), 0);
  EXPECT_EQ(rate.per_second(57), 0);
  rate.add(7, 57.5);  // in the slot of second 50
  EXPECT_NEAR(rate.per_second(57.99), 7 / 5.99, 1e-9);
}

TEST(Rate, RightAfterTheStartOnlyThatTimeCounts) {
  Rate rate;
  rate.add(20, 1.5);
  EXPECT_NEAR(rate.per_second(2), 10, 1e-9);
}

TEST(Rate, LosesNothingBetweenThreads) {
  Rate rate;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 10000; ++n) rate.add(1, 10.5);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(rate.per_second(10.5) * 5.5, 40000, 1e-6);
}

}  // namespace
}  // namespace quire::serve
