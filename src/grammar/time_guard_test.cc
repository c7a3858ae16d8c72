#include "grammar/time_guard.h"

#include <gtest/gtest.h>
#include <xgrammar/step_hook.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/processor_time.h"

namespace quire::grammar {
namespace {

using namespace std::chrono_literals;

TEST(TimeAllowance, TokensEarnBackUpToTheBeginning) {
  TimeAllowance allowance({.at_once = 10ms, .per_token = 1ms});
  allowance.earn_for_a_token();
  EXPECT_TRUE(allowance.spend(9ms));
  allowance.earn_for_a_token();
  EXPECT_TRUE(allowance.spend(1ms)) << "of two";
  EXPECT_FALSE(allowance.spend(1ms));
}

TEST(TimeAllowance, UsedUpItStaysSo) {
  TimeAllowance allowance({.at_once = 10ms});
  EXPECT_FALSE(allowance.spend(11ms));
  allowance.earn_for_a_token();
  EXPECT_TRUE(allowance.used_up());
}

// Two texts of a call at the same moment: both are under way before either has used any of the call's time.
TEST(TimeGuard, WorkOnTwoThreadsSharesOneAllowance) {
  TimeAllowance allowance({.at_once = 40ms});
  std::atomic<int> guarded = 0;
  const auto work = [&] {
    const auto began = thread_processor_time();
    const TimeGuard guard(allowance);
    for (++guarded; guarded < 2;) std::this_thread::sleep_for(100us);
    EXPECT_THROW(for (;;) xgrammar::step_hook(), TimeOver);
    return thread_processor_time() - began;
  };
  auto other = std::async(std::launch::async, work);
  const auto own = work();
  const auto used = own + other.get();
  EXPECT_GE(used, 40ms);
  EXPECT_LT(used, 60ms);
}

}  // namespace
}  // namespace quire::grammar
