#include "engine/draft_tree.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "engine/draft_budget.h"
#include "engine/draft_record.h"

namespace quire::engine {
namespace {

std::vector<int32_t> tokens_of(const std::vector<DraftToken>& drafts) {
  std::vector<int32_t> tokens;
  for (const DraftToken& draft : drafts) tokens.push_back(draft.token);
  return tokens;
}

// The tree that the header draws: b -+- 1 -+- 2 --- 4
//                                    +- 3 --- 5
std::vector<DraftToken> drawn_tree() {
  return {{.token = 1, .hit = 0.5f},
          {.token = 2, .hit = 0.8f},
          {.token = 3, .hit = 0.375f, .back = 3},
          {.token = 4, .hit = 0.5f, .back = 2},
          {.token = 5, .hit = 0.5f, .back = 2}};
}

TEST(DraftTree, EachDraftSaysWhatItFollows) {
  const std::vector<DraftToken> drafts = drawn_tree();
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < 5; ++i) parents.push_back(parent_of(drafts, i));
  EXPECT_EQ(parents, (std::vector<int32_t>{-1, 0, -1, 1, 2}));
  EXPECT_FALSE(is_chain(drafts));
  EXPECT_TRUE(is_chain(std::span(drafts).first(2)));
  EXPECT_TRUE(is_chain({}));
}

TEST(DraftTree, PathsMultiplyAlongBranches) {
  const std::vector<double> paths = paths_of(drawn_tree());
  const std::vector<double> expected = {0.5, 0.4, 0.375, 0.2, 0.1875};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(paths[i], expected[i], 1e-6) << i;
  EXPECT_NEAR(expected_tokens(drawn_tree()), 0.5 + 0.4 + 0.375 + 0.2 + 0.1875, 1e-6);
  EXPECT_EQ(expected_tokens({}), 0);
}

TEST(DraftTree, ADraftFollowsOneBeforeIt) {
  for (const int32_t back : {0, -1, 3}) {
    const std::vector<DraftToken> drafts = {{.token = 1, .hit = 1}, {.token = 2, .hit = 1, .back = back}};
    EXPECT_THROW(paths_of(drafts), CheckError) << back;
  }
}

TEST(DraftTree, TheBestPathIsTheBranchThatBringsMost) {
  std::vector<DraftToken> drafts = drawn_tree();
  keep_best_path(drafts);
  EXPECT_EQ(tokens_of(drafts), (std::vector<int32_t>{1, 2, 4}));
  EXPECT_TRUE(is_chain(drafts));
  EXPECT_NEAR(expected_tokens(drafts), 0.5 + 0.4 + 0.2, 1e-6);
  drafts = drawn_tree();
  drafts[2].hit = 0.9f;  // and its child is as likely as before, given it
  keep_best_path(drafts);
  EXPECT_EQ(tokens_of(drafts), (std::vector<int32_t>{3, 5}));
  std::vector<DraftToken> chain = {{.token = 7, .hit = 0.1f}, {.token = 8, .hit = 0.1f}};
  keep_best_path(chain);
  EXPECT_EQ(tokens_of(chain), (std::vector<int32_t>{7, 8}));
}

// --- who reads trees

// What a step verifies of several trees is the beginning of each, and of all drafts the likeliest.
TEST(DraftTree, ABudgetTakesTheLikeliestDraftsOfAllTrees) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<DraftToken>> trees(3);
    for (std::vector<DraftToken>& tree : trees) {
      std::vector<double> paths;
      for (int32_t i = 0; i < 8; ++i) {  // likeliest first: none is likelier than the one before it
        const int32_t parent = static_cast<int32_t>(random() % (i + 1)) - 1;
        const double above = parent < 0 ? 1 : paths[parent], before = i == 0 ? 1 : paths[i - 1];
        const double path = std::min(above, before) * (0.5 + static_cast<double>(random() % 1000) / 2000);
        tree.push_back({.token = i, .hit = static_cast<float>(path / above), .back = i - parent});
        paths.push_back(path);
      }
    }
    const std::vector<std::vector<DraftToken>> whole = trees;
    const auto most = static_cast<int32_t>(random() % 20);
    std::vector<std::vector<DraftToken>*> lists;
    for (std::vector<DraftToken>& tree : trees) lists.push_back(&tree);
    DraftBudget(64, 0, 0).cut({.decoding = 3, .most = most}, lists);
    double worst_taken = 1, best_left = 0;
    size_t taken = 0;
    for (size_t i = 0; i < 3; ++i) {
      taken += trees[i].size();
      const std::vector<double> paths = paths_of(whole[i]);
      ASSERT_LE(trees[i].size(), paths.size());
      if (!trees[i].empty()) worst_taken = std::min(worst_taken, paths[trees[i].size() - 1]);
      if (trees[i].size() < paths.size()) best_left = std::max(best_left, paths[trees[i].size()]);
      for (size_t j = 0; j < trees[i].size(); ++j) EXPECT_EQ(trees[i][j].token, whole[i][j].token);
    }
    EXPECT_EQ(taken, static_cast<size_t>(most));
    EXPECT_GE(worst_taken, best_left);
  }
}

// Rows that cost much leave no siblings.
TEST(DraftTree, ABudgetCutsBranchesThatDoNotPay) {
  std::vector<DraftToken> drafts = {{.token = 1, .hit = 0.9f},
                                    {.token = 2, .hit = 0.9f},
                                    {.token = 3, .hit = 0.1f, .back = 3},
                                    {.token = 4, .hit = 0.1f, .back = 3}};
  std::vector<DraftToken>* lists[] = {&drafts};
  DraftBudget(64, 0.3, 0).cut({.decoding = 1, .most = 8}, lists);
  EXPECT_EQ(tokens_of(drafts), (std::vector<int32_t>{1, 2}));
}

// Of each token that came, all drafts that stood in its place are counted, and nothing behind a draft that did not
// come.
TEST(DraftTree, ARecordLearnsFromAllSiblings) {
  const auto rates = std::make_shared<DraftRates>();
  DraftRecord record(rates);
  const auto count = [&](float said) {  // what has changed since nothing was known
    return rates->rate(said) - DraftRates().rate(said);
  };
  const std::vector<DraftToken> drafts = {{.token = 1, .hit = 0.62f},
                                          {.token = 2, .hit = 0.32f, .back = 2},
                                          {.token = 3, .hit = 0.92f, .back = 2},   // behind 1
                                          {.token = 3, .hit = 0.82f, .back = 2},   // behind 2
                                          {.token = 4, .hit = 0.12f, .back = 3},   // behind 2
                                          {.token = 5, .hit = 0.52f, .back = 2}};  // behind that 3
  record.propose(std::vector<int32_t>{9}, drafts);
  record.learn(std::vector<int32_t>{9, 2, 3, 7});
  EXPECT_LT(count(0.62f), 0) << "1 did not come";
  EXPECT_GT(count(0.32f), 0) << "2 came";
  EXPECT_EQ(count(0.92f), 0) << "3 behind 1, which did not come";
  EXPECT_GT(count(0.82f), 0) << "3 behind 2";
  EXPECT_LT(count(0.12f), 0) << "4 behind 2";
  EXPECT_LT(count(0.52f), 0) << "5 behind 3: 7 came";
}

}  // namespace
}  // namespace quire::engine
