#include "http/body_budget.h"

#include <gtest/gtest.h>

#include "base/testing/expect_refused.h"

namespace quire::http {
namespace {

using Verdict = BodyBudget::Outcome;

TEST(BodyBudget, OnePeerCannotTakeTheOthersShare) {
  BodyBudget budget(100, 60);
  EXPECT_EQ(budget.hold("a", 50), Verdict::held);
  EXPECT_EQ(budget.hold("a", 11), Verdict::peer_has_too_much);
  EXPECT_EQ(budget.hold("a", 10), Verdict::held);
  EXPECT_EQ(budget.hold("b", 41), Verdict::all_have_too_much);
  EXPECT_EQ(budget.hold("b", 40), Verdict::held);
  EXPECT_EQ(budget.hold("c", 1), Verdict::all_have_too_much);
  EXPECT_EQ(budget.held(), 100u);
  budget.release("a", 60);
  EXPECT_EQ(budget.hold("c", 60), Verdict::held);
  EXPECT_EQ(budget.held(), 100u);
}

TEST(BodyBudget, AShareFollowsWhatIsThere) {
  BodyBudget budget(100, 60);
  {
    BodyBudget::Share share(budget, "a");
    EXPECT_EQ(share.grow_to(60), Verdict::held);
    EXPECT_EQ(share.grow_to(61), Verdict::peer_has_too_much);
    EXPECT_EQ(share.bytes(), 60u);
    share.shrink_to(60);
    share.shrink_to(20);
    EXPECT_EQ(budget.held(), 20u);
    EXPECT_EQ(share.grow_to(30), Verdict::held);
    EXPECT_EQ(budget.held(), 30u);
  }
  EXPECT_EQ(budget.held(), 0u);
}

TEST(BodyBudget, WhatWasNotHeldIsNotReleased) {
  BodyBudget budget(100, 60);
  EXPECT_EQ(budget.hold("a", 61), Verdict::peer_has_too_much);
  expect_refused([&] { budget.release("a", 1); }, "more of a body is released than is held");
  budget.release("a", 0);
  EXPECT_EQ(budget.held(), 0u);
}

}  // namespace
}  // namespace quire::http
