#include "serving_arrivals.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::bench {
namespace {

using Time = Arrivals::Time;
using std::chrono::seconds;

TEST(ServingArrivals, AClosedLoopIsAlwaysDueUntilItIsExhausted) {
  Arrivals arrivals({.requests = 2}, Time());
  EXPECT_EQ(arrivals.due(Time(seconds(3))), Time(seconds(3)));
  EXPECT_EQ(arrivals.due(Time(seconds(4))), Time(seconds(4)));
  EXPECT_TRUE(arrivals.exhausted(Time(seconds(4))));
  EXPECT_FALSE(arrivals.due(Time(seconds(5))));
  EXPECT_EQ(arrivals.begun(), 2);
}

TEST(ServingArrivals, TimeEndsALoad) {
  Arrivals arrivals({.requests = 0, .seconds = 10}, Time());
  EXPECT_TRUE(arrivals.due(Time(seconds(9))));
  EXPECT_FALSE(arrivals.due(Time(seconds(10))));
}

// The moments that requests were due, when somebody asks only at the end.
std::vector<Time> moments(const ArrivalOptions& options) {
  Arrivals arrivals(options, Time());
  std::vector<Time> all;
  while (const auto due = arrivals.due(Time(seconds(100'000)))) all.push_back(*due);
  return all;
}

TEST(ServingArrivals, ARateGivesMomentsThatDoNotDependOnWhoAsksWhen) {
  const std::vector<Time> all = moments({.requests = 2000, .rate = 4, .seed = 3});
  ASSERT_EQ(all.size(), 2000);
  EXPECT_EQ(all, moments({.requests = 2000, .rate = 4, .seed = 3}));
  EXPECT_NE(all, moments({.requests = 2000, .rate = 4, .seed = 4}));
  const double mean = std::chrono::duration<double>(all.back() - all.front()).count() / 1999;
  EXPECT_NEAR(mean, 0.25, 0.02);
  Arrivals arrivals({.requests = 2000, .rate = 4, .seed = 3}, Time());
  EXPECT_EQ(arrivals.due(Time()), Time());
  EXPECT_FALSE(arrivals.due(all[1] - std::chrono::nanoseconds(1)));
  EXPECT_EQ(arrivals.next(), all[1]);
  EXPECT_EQ(arrivals.due(all[1]), all[1]);
}

TEST(ServingArrivals, NoMomentOfARateIsPastTheTime) {
  for (const Time moment : moments({.requests = 0, .seconds = 5, .rate = 100})) EXPECT_LT(moment, Time(seconds(5)));
}

}  // namespace
}  // namespace quire::bench
