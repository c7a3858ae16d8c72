#include "start_times.h"

#include <gtest/gtest.h>

#include <memory>

namespace quire {
namespace {

using namespace std::chrono_literals;

TEST(StartTimes, NamesTheWholeAndItsParts) {
  const StartTimes::Clock::time_point begin{};
  StartTimes times(begin);
  EXPECT_EQ(times.text(), "0.0 s");
  times.ended("weights", begin + 1260ms);
  times.ended("memory and graphs", begin + 2060ms);
  EXPECT_EQ(times.text(), "2.1 s: weights 1.3, memory and graphs 0.8");
}

TEST(StartTimes, GivesWhatTheWorkReturns) {
  StartTimes times;
  EXPECT_EQ(*times.timed("work", [] { return std::make_unique<int>(7); }), 7);
  EXPECT_NE(times.text().find(": work 0."), std::string::npos) << times.text();
}

}  // namespace
}  // namespace quire
