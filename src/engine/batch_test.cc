#include "engine/batch.h"

#include <gtest/gtest.h>

#include "engine/step.h"

namespace quire::engine {
namespace {

std::vector<int32_t> rows_of(const std::vector<WantedRow>& list) {
  std::vector<int32_t> rows;
  for (const WantedRow& wanted : list) rows.push_back(wanted.row);
  return rows;
}

std::shared_ptr<const Request> asks(Pooling pooling) {
  return std::make_shared<const Request>(Request{.pooling = pooling});
}

// One that decodes, one whose token is not known yet, a prompt that is scored and draws, one that is pooled.
Batch mixed_batch() {
  Batch batch;
  const std::vector<int32_t> tokens = {10, 11, 12, 13, 14, 15};
  const auto plain = asks(Pooling::none), pools = asks(Pooling::mean);
  batch.add({.id = 1, .row = {1}, .position = 5, .count = 1, .draws = true, .request = plain}, tokens);
  batch.add({.id = 2, .row = {2}, .position = 6, .count = 1, .draws = true, .request = plain}, tokens);
  batch.add({.id = 3, .row = {3}, .position = 2, .count = 4, .draws = true, .kept = {2, 4}, .request = plain}, tokens);
  batch.add({.id = 4, .row = {4}, .position = 0, .count = 3, .kept = {1, 3}, .request = pools}, tokens);
  return batch;
}

TEST(Batch, ListsTheRowsThatAreWantedInTheOrderOfTheShares) {
  const Batch batch = mixed_batch();
  EXPECT_EQ(batch.token_ids, (std::vector<int32_t>{15, kFutureToken, 12, 13, 14, 15, 10, 11, 12}));
  EXPECT_EQ(rows_of(batch.drawn), (std::vector<int32_t>{0, 1, 5}));
  EXPECT_EQ(rows_of(batch.scored), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(rows_of(batch.pooled), (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(batch.scored[0].token, 13) << "a row tells how likely the next token was";
  EXPECT_EQ(batch.scored[1].token, 14);
  EXPECT_EQ(batch.pooled[0].share, 3);
  EXPECT_EQ(batch.with_logits(), 5);
  EXPECT_EQ(batch.wanted_rows(), 7);
}

TEST(Batch, EachShareFindsItsResults) {
  const Batch batch = mixed_batch();
  StepResults results{.drawn = std::vector<RowResult>(3), .scored = std::vector<RowResult>(2), .width = 2};
  results.pooled = {1, 2, 3, 4};
  EXPECT_EQ(results.of(batch.shares[1]).drawn.data(), &results.drawn[1]);
  EXPECT_TRUE(results.of(batch.shares[1]).scored.empty());
  EXPECT_EQ(results.of(batch.shares[2]).drawn.data(), &results.drawn[2]);
  EXPECT_EQ(results.of(batch.shares[2]).scored.size(), 2u);
  EXPECT_TRUE(results.of(batch.shares[3]).drawn.empty());
  ASSERT_EQ(results.of(batch.shares[3]).pooled.rows, 2);
  EXPECT_EQ(results.of(batch.shares[3]).pooled.row(1)[0], 3);
}

TEST(Batch, CarriesTheTextsOfThoseThatDrawWithPenalties) {
  Batch batch = mixed_batch();
  EXPECT_TRUE(batch.history.empty());
  const auto penalised = std::make_shared<const Request>(Request{.sampling = {.presence_penalty = 1}});
  const std::vector<int32_t> tokens = {5, 6, 7};
  for (const bool draws : {false, true, true})
    batch.add({.id = 9, .row = {9}, .position = 2, .count = 1, .draws = draws, .request = penalised}, tokens);
  EXPECT_EQ(batch.history, (std::vector<int32_t>{5, 6, 7, 5, 6, 7}));
  EXPECT_EQ(batch.shares[6].history.begin, 3);
  EXPECT_EQ(batch.shares[6].history.count, 3);
}

// Of each text the last row draws, and those of its drafts; penalties count the drafts that came.
TEST(Batch, DraftsFollowTheTextAndAllOfThemMayDraw) {
  Batch batch;
  const auto penalised = std::make_shared<const Request>(Request{.sampling = {.presence_penalty = 1}});
  const std::vector<int32_t> tokens = {10, 11, 12};
  const std::vector<DraftToken> drafts = {{.token = 20, .hit = 1}, {.token = 21, .hit = 1}};
  batch.add({.id = 1, .row = {1}, .position = 2, .count = 3, .drafts = 2, .draws = true, .request = penalised}, tokens,
            drafts);
  batch.add({.id = 2, .row = {2}, .position = 0, .count = 3, .draws = true, .request = asks(Pooling::none)}, tokens);
  EXPECT_EQ(batch.token_ids, (std::vector<int32_t>{12, 20, 21, 10, 11, 12}));
  EXPECT_EQ(rows_of(batch.drawn), (std::vector<int32_t>{0, 1, 2, 5}));
  EXPECT_EQ(batch.shares[0].drawn.count, 3);
  EXPECT_EQ(batch.shares[1].drawn.begin, 3);
  EXPECT_EQ(batch.shares[0].text_end(), 3);
  EXPECT_EQ(batch.history, (std::vector<int32_t>{10, 11, 12, 20, 21}));
  EXPECT_EQ(batch.shares[0].history.count, 5);
}

TEST(Batch, SaysWhichRowEachDraftFollows) {
  Batch batch;
  const std::vector<int32_t> tokens = {10, 11, 12};
  const std::vector<DraftToken> tree = {
      {.token = 20, .hit = 1}, {.token = 21, .hit = 1, .back = 2}, {.token = 22, .hit = 1, .back = 1}};
  const std::vector<DraftToken> chain = {{.token = 20, .hit = 1}, {.token = 21, .hit = 1}};
  const auto add = [&](RequestId id, const std::vector<DraftToken>& drafts) {
    const auto count = static_cast<int32_t>(drafts.size());
    batch.add({.id = id,
               .row = {1},
               .position = 2,
               .count = 1 + count,
               .drafts = count,
               .draws = true,
               .request = asks(Pooling::none)},
              tokens, drafts);
  };
  add(1, chain);
  EXPECT_FALSE(batch.has_trees());
  add(2, tree);
  EXPECT_TRUE(batch.has_trees());
  EXPECT_FALSE(batch.shares[0].branches);
  EXPECT_TRUE(batch.shares[1].branches);
  std::vector<int32_t> follows;
  for (const WantedRow& row : batch.drawn) follows.push_back(row.follows);
  EXPECT_EQ(follows, (std::vector<int32_t>{0, 0, 1, 0, 0, 0, 2}));
}

TEST(Batch, AClearedOneIsAsNew) {
  Batch batch = mixed_batch();
  batch.clear();
  EXPECT_TRUE(batch.empty());
  EXPECT_EQ(batch.rows() + batch.wanted_rows(), 0);
}

}  // namespace
}  // namespace quire::engine
