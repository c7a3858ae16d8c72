#include "engine/step_sampler.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/check.h"

namespace quire::engine {
namespace {

constexpr int32_t kIds = 8;

// Rows of logits that are largest at one token each.
class Peaks {
 public:
  explicit Peaks(const std::vector<int32_t>& tokens) : logits_(tokens.size() * kIds) {
    for (size_t row = 0; row < tokens.size(); ++row) logits_[row * kIds + static_cast<size_t>(tokens[row])] = 5;
  }
  Rows<const float> rows() const { return {logits_.data(), static_cast<int64_t>(logits_.size() / kIds), kIds, kIds}; }

 private:
  std::vector<float> logits_;
};

class StepSamplerTest : public ::testing::Test {
 protected:
  // A text of three tokens, of which the last is computed with these drafts behind it.
  void add(const std::vector<int32_t>& drafts, Request request, std::shared_ptr<AheadMask> mask = {}) {
    std::vector<DraftToken> tokens;
    for (const int32_t token : drafts) tokens.push_back({.token = token, .hit = 1});
    add_tree(tokens, std::move(request), std::move(mask));
  }
  void add_tree(const std::vector<DraftToken>& tokens, Request request, std::shared_ptr<AheadMask> mask = {}) {
    const auto count = static_cast<int32_t>(tokens.size());
    batch_.add({.id = 1 + batch_.shares.size(),
                .row = {1},
                .position = 2,
                .count = 1 + count,
                .drafts = count,
                .draws = true,
                .generated = 1,
                .request = std::make_shared<const Request>(std::move(request)),
                .mask = std::move(mask)},
               std::vector<int32_t>{1, 1, 1}, tokens);
  }
  // What each row drew; -1: nothing.
  std::vector<int32_t> draw(const std::vector<int32_t>& peaks) {
    StepSampler(kIds, masks_, exec_, std::chrono::seconds(30)).run(batch_, Peaks(peaks).rows(), results_);
    std::vector<int32_t> drawn;
    for (const RowResult& row : results_.drawn) drawn.push_back(row.tokens.empty() ? -1 : row.tokens.front().token);
    return drawn;
  }
  static Request greedily() { return {.sampling = {.temperature = 0}}; }

  Exec exec_{{.threads = 2}};
  MaskThreads masks_;
  Batch batch_;
  StepResults results_;
};

using Drawn = std::vector<int32_t>;

TEST_F(StepSamplerTest, WalksAsFarAsDraftsComeTrue) {
  add({2, 3, 4}, greedily());
  EXPECT_EQ(draw({2, 3, 4, 5}), (Drawn{2, 3, 4, 5})) << "all, and the token behind them";
  EXPECT_EQ(draw({2, 6, 4, 5}), (Drawn{2, 6, -1, -1})) << "what comes in place of a draft is the walk's last";
  EXPECT_EQ(draw({6, 3, 4, 5}), (Drawn{6, -1, -1, -1}));
}

// b -+- 2 -+- 3 --- 4
//    |     +- 5
//    +- 6 --- 3
const std::vector<DraftToken> kTree = {{.token = 2, .hit = 1},
                                       {.token = 3, .hit = 1},
                                       {.token = 6, .hit = 1, .back = 3},
                                       {.token = 4, .hit = 1, .back = 2},
                                       {.token = 5, .hit = 1, .back = 4},
                                       {.token = 3, .hit = 1, .back = 3}};

TEST_F(StepSamplerTest, WalksToTheChildThatCame) {
  add_tree(kTree, greedily());
  EXPECT_EQ(draw({2, 3, 4, 0, 7, 0, 0}), (Drawn{2, 3, 4, -1, 7, -1, -1})) << "2 3 4, and 7 behind it";
  EXPECT_EQ(draw({2, 5, 0, 0, 0, 1, 0}), (Drawn{2, 5, -1, -1, -1, 1, -1})) << "a later sibling";
  EXPECT_EQ(draw({6, 0, 0, 3, 0, 0, 7}), (Drawn{6, -1, -1, 3, -1, -1, 7})) << "3 behind 6, not behind 2";
  EXPECT_EQ(draw({6, 0, 0, 5, 0, 0, 0}), (Drawn{6, -1, -1, 5, -1, -1, -1})) << "5 stands behind 2 alone";
  EXPECT_EQ(draw({3, 0, 0, 0, 0, 0, 0}), (Drawn{3, -1, -1, -1, -1, -1, -1})) << "3 stands behind no text";
}

TEST_F(StepSamplerTest, TheRowsOfAWalkAreItsPath) {
  add({2}, greedily());
  add_tree(kTree, greedily());
  draw({2, 7, 6, 0, 0, 3, 0, 0, 7});
  EXPECT_EQ(walked_rows(batch_.shares[0], results_), (Drawn{0, 1}));
  EXPECT_EQ(walked_rows(batch_.shares[1], results_), (Drawn{0, 3, 6}));
}

TEST_F(StepSamplerTest, EachRequestWalksForItself) {
  add({2, 3}, greedily());
  add({}, greedily());
  add({4, 5}, greedily());
  EXPECT_EQ(draw({2, 7, 0, 6, 4, 5, 1}), (Drawn{2, 7, -1, 6, 4, 5, 1}));
}

TEST_F(StepSamplerTest, AStopIdEndsTheWalk) {
  Request request = greedily();
  request.stop_ids = {3};
  add({2, 3, 4}, request);
  EXPECT_EQ(draw({2, 3, 4, 5}), (Drawn{2, 3, -1, -1}));
}

// One of the tokens is generated already, so the third is the first that may stop.
TEST_F(StepSamplerTest, TheFewestTokensAreCountedWithDrafts) {
  Request request = greedily();
  request.stop_ids = {3};
  request.min_new_tokens = 2;
  add({0, 0}, request);
  EXPECT_EQ(draw({3, 3, 3})[0], 0) << "not yet";
  EXPECT_EQ(results_.drawn[1].tokens.front().token, 3);
}

// A penalty counts the drafts that came, and none behind them.
TEST_F(StepSamplerTest, PenaltiesSeeTheTextWithTheDraftsThatCame) {
  Request request = greedily();
  request.sampling.frequency_penalty = 2;
  add({2, 2, 2, 2, 2}, request);
  // 5 less 2 for each 2 before: after three of them the others, which weigh 0, are larger.
  EXPECT_EQ(draw({2, 2, 2, 2, 2, 2}), (Drawn{2, 2, 2, 0, -1, -1}));
}

// Of a tree too it counts the path, whichever rows lie in between.
TEST_F(StepSamplerTest, PenaltiesSeeThePathOfATree) {
  Request request = greedily();
  request.sampling.frequency_penalty = 2;
  const std::vector<DraftToken> tree = {{.token = 4, .hit = 1},
                                        {.token = 2, .hit = 1, .back = 2},
                                        {.token = 4, .hit = 1, .back = 1},
                                        {.token = 2, .hit = 1, .back = 2},
                                        {.token = 4, .hit = 1, .back = 1},
                                        {.token = 2, .hit = 1, .back = 2}};
  add_tree(tree, request);
  // 5 less 2 for each 2 before: after three of them the others, which weigh 0, are larger.
  EXPECT_EQ(draw({2, 0, 2, 0, 2, 0, 2}), (Drawn{2, -1, 2, -1, 2, -1, 0}));
}

TEST_F(StepSamplerTest, SeededDrawsInATreeAreThoseOfTheirDepths) {
  const std::vector<float> flat(16 * kIds, 0);
  const Request request{.sampling = {.seed = 5}};
  StepSampler sampler(kIds, masks_, exec_);
  std::vector<int32_t> alone;
  for (int32_t i = 0; i < 5; ++i) {
    Batch one;
    one.add({.id = 1,
             .row = {1},
             .position = 2 + i,
             .count = 1,
             .draws = true,
             .generated = 1 + i,
             .request = std::make_shared<const Request>(request)},
            std::vector<int32_t>(3 + i, 1));
    sampler.run(one, {flat.data(), 1, kIds, kIds}, results_);
    alone.push_back(results_.drawn[0].tokens.front().token);
  }
  std::vector<DraftToken> tree;  // at each depth a draft that is wrong, then the right one
  for (int32_t i = 0; i < 4; ++i) {
    tree.push_back({.token = (alone[i] + 1) % kIds, .hit = 1, .back = 1});
    tree.push_back({.token = alone[i], .hit = 1, .back = 2});
  }
  add_tree(tree, request);
  sampler.run(batch_, {flat.data(), 9, kIds, kIds}, results_);
  ASSERT_EQ(walked_rows(batch_.shares[0], results_), (Drawn{0, 2, 4, 6, 8}));
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(results_.drawn[2 * i].tokens.front().token, alone[i]);
}

TEST_F(StepSamplerTest, SeededDrawsAreThoseOfTheirPositions) {
  const std::vector<float> flat(16 * kIds, 0);
  const auto request = std::make_shared<const Request>(Request{.sampling = {.seed = 5}});
  StepSampler sampler(kIds, masks_, exec_);
  std::vector<int32_t> alone = {1, 1, 1};
  for (int32_t i = 0; i < 8; ++i) {
    Batch one;
    one.add({.id = 1, .row = {1}, .position = 2 + i, .count = 1, .draws = true, .generated = i, .request = request},
            alone);
    sampler.run(one, {flat.data(), 1, kIds, kIds}, results_);
    alone.push_back(results_.drawn[0].tokens.front().token);
  }
  add(std::vector<int32_t>(alone.begin() + 3, alone.end() - 1), *request);
  sampler.run(batch_, {flat.data(), 8, kIds, kIds}, results_);
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(results_.drawn[i].tokens.size(), 1u) << i;
    EXPECT_EQ(results_.drawn[i].tokens.front().token, alone[3 + i]);
  }
}

// Allows one token after the other; throws when it is asked once more.
class OneByOne final : public TokenMask {
 public:
  explicit OneByOne(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  const uint32_t* next() override {
    check(asked_ < tokens_.size(), "asked after the end");
    bits_ = uint32_t{1} << tokens_[asked_++];
    return &bits_;
  }
  void accept(int32_t token) override { EXPECT_EQ(token, tokens_[asked_ - 1]); }

 private:
  std::vector<int32_t> tokens_;
  size_t asked_ = 0;
  uint32_t bits_ = 0;
};

TEST_F(StepSamplerTest, AMaskIsToldWhatWasDrawnAndNothingElse) {
  const auto mask = std::make_shared<AheadMask>(std::make_shared<OneByOne>(std::vector<int32_t>{2, 6, 7}));
  masks_.begin(mask);
  masks_.wait([&] { return mask->ready(); }, std::chrono::seconds(30));
  add({2, 3, 4}, greedily(), mask);
  EXPECT_EQ(draw({0, 0, 0, 0}), (Drawn{2, 6, -1, -1})) << "the mask forbids the second draft";
}

TEST_F(StepSamplerTest, WhatAMaskThrowsIsSaidBehindTheTokensBeforeIt) {
  const auto mask = std::make_shared<AheadMask>(std::make_shared<OneByOne>(std::vector<int32_t>{2, 3}));
  masks_.begin(mask);
  masks_.wait([&] { return mask->ready(); }, std::chrono::seconds(30));
  add({2, 3, 4}, greedily(), mask);
  EXPECT_EQ(draw({0, 0, 0, 0}), (Drawn{2, 3, -1, -1}));
  EXPECT_EQ(results_.drawn[2].error, "asked after the end");
  EXPECT_TRUE(results_.drawn[3].error.empty());
}

// Others of its step wait for its walk, so its masks have one patience together.
class SlowMask final : public TokenMask {
 public:
  const uint32_t* next() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return nullptr;
  }
  void accept(int32_t) override {}
};

TEST_F(StepSamplerTest, AWalkUnderASlowMaskHoldsAStepUpNoLongerThanItsPatience) {
  const auto mask = std::make_shared<AheadMask>(std::make_shared<SlowMask>());
  masks_.begin(mask);
  masks_.wait([&] { return mask->ready(); }, std::chrono::seconds(30));
  add(std::vector<int32_t>(60, 2), greedily(), mask);
  const Peaks peaks(std::vector<int32_t>(61, 2));
  const auto start = std::chrono::steady_clock::now();
  StepSampler(kIds, masks_, exec_, std::chrono::milliseconds(100)).run(batch_, peaks.rows(), results_);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(600));  // 60 masks take 1200
  EXPECT_FALSE(results_.drawn[0].tokens.empty());
  EXPECT_TRUE(results_.drawn[60].tokens.empty());
}

}  // namespace
}  // namespace quire::engine
