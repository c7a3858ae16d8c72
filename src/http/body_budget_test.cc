#include "http/body_budget.h"

#include <gtest/gtest.h>

#include "base/expect_refused.h"

namespace quire::http {
namespace {

using Outcome = BodyBudget::Outcome;

TEST(BodyBudget, OnePeerCannotTakeTheOthersShare) {
  BodyBudget budget(100, 60);
  EXPECT_EQ(budget.hold("a", 50), Outcome::held);
  EXPECT_EQ(budget.hold("a", 11), Outcome::peer_has_too_much);
  EXPECT_EQ(budget.hold("a", 10), Outcome::held);
  EXPECT_EQ(budget.hold("b", 41), Outcome::all_have_too_much);
  EXPECT_EQ(budget.hold("b", 40), Outcome::held);
  EXPECT_EQ(budget.hold("c", 1), Outcome::all_have_too_much);
  EXPECT_EQ(budget.held(), 100u);
  budget.release("a", 60);
  EXPECT_EQ(budget.hold("c", 60), Outcome::held);
  EXPECT_EQ(budget.held(), 100u);
}

TEST(BodyBudget, WhatWasNotHeldIsNotReleased) {
  BodyBudget budget(100, 60);
  EXPECT_EQ(budget.hold("a", 61), Outcome::peer_has_too_much);
  expect_refused([&] { budget.release("a", 1); }, "more of a body is released than is held");
  budget.release("a", 0);
  EXPECT_EQ(budget.held(), 0u);
}

}  // namespace
}  // namespace quire::http
