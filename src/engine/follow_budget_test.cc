#include "engine/follow_budget.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::engine {
namespace {

using namespace std::chrono_literals;
using Choice = FollowBudget::Choice;

// So many planned steps, for each request of which the model was asked, beside own drafts that promise so much.
void see(FollowBudget& budget, int32_t decoding, double gain, int times = 200, int32_t asked = 0, double own = 0) {
  const std::vector<double> all(asked ? asked : decoding, own);
  for (int i = 0; i < times; ++i) {
    for (const double each : all) budget.asks(decoding, each);
    budget.compare(decoding, all, gain, 1);
  }
}

FollowBudget::Beginning beginning(int32_t decoding, int32_t prompt_rows = 100) {
  return {.decoding = decoding, .prompt_rows = prompt_rows, .step = 3ms};
}

TEST(FollowBudget, AModelIsWorthATry) {
  FollowBudget budget;
  EXPECT_TRUE(budget.gains(1));
  EXPECT_EQ(budget.choose(beginning(1)), Choice::followed);
  EXPECT_EQ(budget.choose({.decoding = 40, .prompt_rows = 8000, .step = {}}), Choice::followed);
}

TEST(FollowBudget, ARequestIsFollowedWhereThatGains) {
  FollowBudget budget;
  see(budget, 1, 1.3);
  see(budget, 16, 0.9);
  EXPECT_EQ(budget.choose(beginning(1)), Choice::followed);
  EXPECT_EQ(budget.choose(beginning(16)), Choice::left);
  EXPECT_EQ(budget.choose(beginning(20)), Choice::left);
  EXPECT_FALSE(budget.gains(16));
  EXPECT_TRUE(budget.gains(15)) << "of which nothing is known but that one gains";
  see(budget, 16, 1.2, 200);
  EXPECT_TRUE(budget.gains(16)) << "texts change";
}

TEST(FollowBudget, OfMoreRequestsNoMoreIsExpectedThanOfFewer) {
  FollowBudget budget;
  see(budget, 1, 0.9);
  EXPECT_FALSE(budget.gains(8));
  see(budget, 8, 1.2);
  EXPECT_TRUE(budget.gains(8)) << "unless it was seen";
}

TEST(FollowBudget, AFewBadStepsAreForgiven) {
  FollowBudget budget;
  see(budget, 1, 1.2);
  see(budget, 1, 0.1, 5);
  EXPECT_TRUE(budget.gains(1));
}

TEST(FollowBudget, ALittleGainIsNone) {
  FollowBudget budget;
  see(budget, 1, 1.01);
  EXPECT_FALSE(budget.gains(1));
}

TEST(FollowBudget, OneOfManyForWhichItIsAskedCountsForAll) {
  FollowBudget budget;
  see(budget, 16, 1 + 0.05 / 16, 200, 1);
  EXPECT_TRUE(budget.gains(16));
  FollowBudget losing;
  see(losing, 16, 1 - 0.05 / 16, 200, 1);
  EXPECT_FALSE(losing.gains(16));
}

// 20 % of a step of 3 ms are half a millisecond a token; a row of a prompt costs 30 us.
TEST(FollowBudget, APromptMustBePaidByItsAnswer) {
  FollowBudget budget;
  see(budget, 1, 1.2, 1000);
  budget.followed_prompt(512, 512 * 30us);
  EXPECT_EQ(budget.choose(beginning(1, 4000)), Choice::followed);
  EXPECT_EQ(budget.choose(beginning(1, 5000)), Choice::left) << "an answer is taken to have 256 tokens";
}

// A usual answer gains 128 ms, and the target takes half a millisecond for a row.
TEST(FollowBudget, WhatIsComputedAgainMustBePaidToo) {
  FollowBudget budget;
  see(budget, 1, 1.2, 1000);
  EXPECT_NEAR(budget.usual_gain(1, 3ms).count(), 0.128, 0.001);
  budget.followed_prompt(512, 512 * 30us);
  budget.computed_prompt(512, 512 * 500us);
  const auto choose = [&](int32_t again, FollowBudget::Seconds missed) {
    return budget.choose({.decoding = 1, .prompt_rows = again + 100, .step = 3ms, .again = again, .missed = missed});
  };
  EXPECT_EQ(choose(200, {}), Choice::followed);
  EXPECT_EQ(choose(300, {}), Choice::left);
  EXPECT_EQ(choose(300, 20ms), Choice::left);
  EXPECT_EQ(choose(300, 50ms), Choice::followed) << "others have missed that";
  EXPECT_EQ(choose(4000, 1s), Choice::left);
  EXPECT_EQ(choose(4000, 3s), Choice::followed);
  see(budget, 1, 0.9, 1000);
  EXPECT_EQ(choose(100, 3s), Choice::left) << "where nothing is gained, nothing was missed";
}

TEST(FollowBudget, OfThoseThatAreNotFollowedOneInSomeIsTried) {
  FollowBudget budget;
  see(budget, 1, 0.9);
  budget.followed_prompt(512, 512 * 30us);
  std::vector<int> tried;
  for (int i = 1; i <= 100 * FollowBudget::kProbe; ++i)
    if (budget.choose(beginning(1)) == Choice::tried) tried.push_back(i);
  EXPECT_EQ(tried, (std::vector<int>{16, 48, 112, 240, 496, 1008, 1520})) << "fewer and fewer";
  see(budget, 1, 1.2);
  EXPECT_EQ(budget.choose(beginning(1)), Choice::followed);
  see(budget, 1, 0.8);
  tried.clear();
  for (int i = 1; i <= FollowBudget::kProbe; ++i)
    if (budget.choose(beginning(1)) == Choice::tried) tried.push_back(i);
  EXPECT_EQ(tried.size(), 1) << "since it gained in between";
  for (int i = 0; i < 10 * FollowBudget::kProbe; ++i)
    EXPECT_EQ(budget.choose(beginning(1, 4000)), Choice::left) << "a long prompt is too dear for that";
}

// It seems to gain now and then, so that tries do not become fewer. A step takes 10 ms, a pass for one request 2.
TEST(FollowBudget, TriesTakeAHundredthOfTheTime) {
  FollowBudget budget;
  FollowBudget::Seconds steps = {}, tries = {};
  int followed = 0;
  for (int answers = 0; answers < 4000; ++answers) {
    if (answers % 100 == 0) {
      see(budget, 16, 1.2);
      followed += budget.choose(beginning(16)) == Choice::followed;
      see(budget, 16, 0.8);
    }
    if (budget.choose(beginning(16)) == Choice::tried)
      for (int i = 0; i < FollowBudget::kTried; ++i) {
        budget.tried(2ms);
        tries += 2ms;
      }
    budget.stepped(10ms);
    budget.stepped(10ms);
    steps += 20ms;
  }
  EXPECT_EQ(followed, 40);
  EXPECT_GT(tries, 2 * FollowBudget::kTried * 2ms) << "some there are";
  EXPECT_LT(tries, FollowBudget::kTriesShare * steps + FollowBudget::kTried * 2ms);
}

TEST(FollowBudget, WhatATryTookTooLongTheNextOnesWaitFor) {
  FollowBudget budget;
  see(budget, 16, 0.8);
  budget.tried(20s);
  FollowBudget::Seconds steps = {};
  while (budget.choose(beginning(16)) != Choice::tried) {
    ASSERT_LT(steps, 3000s);
    budget.stepped(100ms);
    steps += 100ms;
  }
  EXPECT_GE(steps + 1s, 20s / FollowBudget::kTriesShare);
}

// Texts that repeat themselves have good drafts of their own, and leave nothing to a model.
TEST(FollowBudget, IsAskedBesideOwnDraftsThatLeaveItSomething) {
  FollowBudget budget;
  see(budget, 1, 1.3, 200, 1, 0);
  see(budget, 1, 1.1, 200, 1, 0.4);
  see(budget, 1, 0.9, 200, 1, 3);
  EXPECT_TRUE(budget.asks(1, 0));
  EXPECT_TRUE(budget.asks(1, 0.3));
  EXPECT_TRUE(budget.asks(1, 0.8)) << "of which nothing is known";
  EXPECT_FALSE(budget.asks(1, 2.5));
  EXPECT_FALSE(budget.asks(1, 7));
  EXPECT_TRUE(budget.gains(1));
}

TEST(FollowBudget, AStepInWhichItIsNotAskedCostsNothing) {
  FollowBudget budget;
  see(budget, 1, 1.2, 100, 1, 0);
  for (int i = 0; i < 30; ++i) see(budget, 1, 0.5, 1, 1, 3);
  for (int i = 0; i < 300; ++i) budget.asks(1, 3);
  EXPECT_TRUE(budget.gains(1)) << "it is asked in a quarter of all steps, and gains a fifth there";
  for (int i = 0; i < 2000; ++i) budget.asks(1, 3);
  EXPECT_FALSE(budget.gains(1)) << "in few steps";
}

TEST(FollowBudget, WhereItIsNotAskedItIsNowAndThen) {
  FollowBudget budget;
  see(budget, 1, 0.9, 200, 1, 3);
  int asked = 0;
  for (int i = 0; i < 10 * FollowBudget::kAskedAgain; ++i) asked += budget.asks(1, 3);
  EXPECT_NEAR(asked, 10, 1);
}

TEST(FollowBudget, WhatAStepCostsIsMeasuredByTheRequestsThatDecode) {
  FollowBudget budget;
  EXPECT_EQ(budget.step_cost(1).count(), 0);
  for (int i = 0; i < 100; ++i) {
    budget.followed_step(1, 100us);
    budget.caught_up(1, 200us);
    budget.followed_step(16, 500us);
    budget.caught_up(16, 1500us);
  }
  EXPECT_NEAR(budget.step_cost(1).count(), 300e-6, 1e-9);
  EXPECT_NEAR(budget.step_cost(17).count(), 2e-3, 1e-9);
  FollowBudget fresh;
  for (const auto time : {50ms, 1ms, 2ms}) fresh.followed_step(1, time);  // the first finds memory untouched
  EXPECT_NEAR(fresh.step_cost(1).count(), 1e-3, 1e-9);
  budget.followed_step(1, 1s);  // held up by something else
  EXPECT_LT(budget.step_cost(1).count(), 400e-6);
}

}  // namespace
}  // namespace quire::engine
