#include "serve/logprob_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "serve/api_error.h"

namespace quire::serve {
namespace {

int status_of(LogprobBudget& budget, int64_t count) {
  try {
    budget.take(count);
  } catch (const ApiError& error) {
    return error.status;
  }
  return 200;
}

TEST(LogprobBudget, WhatOthersHoldIsNotThere) {
  LogprobBudget budget(10);
  LogprobBudget::Share share = budget.take(7);
  EXPECT_EQ(status_of(budget, 4), 503);
  EXPECT_EQ(status_of(budget, 3), 200);
  EXPECT_EQ(status_of(budget, 3), 200) << "it was given back at once";
  LogprobBudget::Share copy = share;
  share = nullptr;
  EXPECT_EQ(status_of(budget, 4), 503);
  copy = nullptr;
  EXPECT_EQ(status_of(budget, 10), 200);
}

TEST(LogprobBudget, NothingIsAlwaysThere) {
  LogprobBudget budget(1);
  const auto all = budget.take(1);
  EXPECT_EQ(status_of(budget, 0), 200);
}

TEST(LogprobBudget, SharesMayOutliveIt) {
  LogprobBudget::Share share;
  {
    LogprobBudget budget(1);
    share = budget.take(1);
  }
  share = nullptr;
}

// While another asks for too much again and again.
TEST(LogprobBudget, WhatFitsIsNeverRefused) {
  LogprobBudget budget(10);
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) EXPECT_EQ(status_of(budget, 11), 503);
  });
  int taken = 0;
  for (int i = 0; i < 50'000; ++i) taken += status_of(budget, 10) == 200;
  done = true;
  other.join();
  EXPECT_EQ(taken, 50'000);
}

}  // namespace
}  // namespace quire::serve
