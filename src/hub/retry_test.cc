#include "hub/retry.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

using namespace std::chrono_literals;

TEST(Retry, WaitsTwiceAsLongEachTimeAndThenGivesUp) {
  Retry retry;
  for (const auto wait : {200ms, 400ms, 800ms, 1600ms}) EXPECT_EQ(retry.after_failure(), wait);
  EXPECT_EQ(retry.after_failure(), std::nullopt);
}

TEST(Retry, ProgressCountsAnew) {
  Retry retry;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(retry.after_failure(), 200ms);
    retry.after_progress();
  }
}

}  // namespace
}  // namespace quire::hub
