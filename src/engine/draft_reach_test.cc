#include "engine/draft_reach.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

using Drafts = std::vector<DraftToken>;

std::vector<double> after_many(int32_t deepest, const Drafts& round) {
  DraftReach reach(deepest);
  for (int i = 0; i < 200; ++i) reach.add(round);
  return {reach.chances().begin(), reach.chances().end()};
}
void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << "depth " << i + 1;
}

TEST(DraftReach, IsThePathOfAChain) { expect_near(after_many(3, {{1, 0.5f}, {2, 0.5f}, {3, 1}}), {0.5, 0.25, 0.25}); }

TEST(DraftReach, IsTheSumOfTheBranchesOfATree) {
  //     0.5 -- 0.5     in order of paths, and how far before each its parent stands
  //     0.25 -- 0.5
  expect_near(after_many(2, {{1, 0.5f}, {2, 0.25f, 2}, {3, 0.5f, 2}, {4, 0.5f, 2}}), {0.75, 0.375});
}

TEST(DraftReach, GoesOnWhereNoPassWasMade) {
  expect_near(after_many(4, {{1, 0.5f}}), {0.5, 0.25, 0.125, 0.0625});
  expect_near(after_many(3, {{1, 0.9f}, {2, 0.4f}}), {0.9, 0.36, 0.216});
}

TEST(DraftReach, IsNothingWhereThereAreNoDrafts) { expect_near(after_many(3, {}), {0, 0, 0}); }

TEST(DraftReach, IgnoresWhatIsDeeperThanItCounts) { expect_near(after_many(1, {{1, 0.5f}, {2, 0.5f}}), {0.5}); }

TEST(DraftReach, ForgetsInAFewRounds) {
  DraftReach reach(2);
  for (int i = 0; i < 100; ++i) reach.add({});
  EXPECT_LT(reach.chances()[0], 0.01);
  for (int i = 0; i < 12; ++i) reach.add(Drafts{{1, 1}, {2, 1}});
  EXPECT_GT(reach.chances()[1], 0.75);
}

}  // namespace
}  // namespace quire::engine
