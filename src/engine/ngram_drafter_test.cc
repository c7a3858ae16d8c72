#include "engine/ngram_drafter.h"

#include <gtest/gtest.h>

#include <random>

#include "base/testing/expect_refused.h"
#include "engine/ngram_table.h"

namespace quire::engine {
namespace {

using Tokens = std::vector<int32_t>;

Tokens tokens_of(const std::vector<DraftToken>& drafts) {
  Tokens tokens;
  for (const DraftToken& draft : drafts) tokens.push_back(draft.token);
  return tokens;
}

std::vector<DraftToken> propose(Drafter& drafter, const Tokens& text, int32_t most = 8) {
  std::vector<DraftToken> drafts;
  drafter.propose(text, most, drafts);
  return drafts;
}

std::unique_ptr<Drafter> fresh() { return ngram_drafters()({}); }

TEST(NgramTable, FindsTheNewestPlaceOfEveryRun) {
  std::mt19937 random(1);
  for (const int32_t n : {2, 3, 5, 8}) {
    Tokens text;
    NgramTable table(n);
    for (int32_t i = 0; i < 600; ++i) {
      text.push_back(static_cast<int32_t>(random() % (n < 4 ? 12 : 2)));
      table.add(text, i);
    }
    for (int32_t end = n; end < 600; ++end) {
      const auto run = std::span<const int32_t>(text).subspan(end - n, n);
      int32_t newest = 0;
      bool branches = false;
      for (int32_t p = n; p < 600; ++p) {
        if (!std::equal(run.begin(), run.end(), text.begin() + p - n)) continue;
        branches = branches || (newest != 0 && text[newest] != text[p]);
        newest = p;
      }
      EXPECT_EQ(table.find(text, run).after, newest);
      EXPECT_EQ(table.find(text, run).branches, branches);
    }
    EXPECT_EQ(table.find(text, Tokens(n, 99)).after, 0);
  }
}

TEST(NgramDrafter, GoesOnAsTheTextDidBefore) {
  const auto drafter = fresh();
  EXPECT_TRUE(propose(*drafter, {1, 2, 3, 4, 5}).empty()) << "nothing has repeated";
  EXPECT_EQ(tokens_of(propose(*drafter, {1, 2, 3, 4, 5, 1, 2}, 3)), (Tokens{3, 4, 5}));
  EXPECT_EQ(tokens_of(propose(*drafter, {1, 2, 3, 4, 5, 1, 2, 9, 1, 2}, 1)), Tokens{9}) << "the newest place";
}

TEST(NgramDrafter, GoesAroundInLoops) {
  EXPECT_EQ(tokens_of(propose(*fresh(), {7, 8, 9, 7, 8, 9}, 7)), (Tokens{7, 8, 9, 7, 8, 9, 7}));
}

TEST(NgramDrafter, TakesTheLongestMatch) {
  // After "2 3" came 6 last, but after "1 2 3" 4.
  EXPECT_EQ(tokens_of(propose(*fresh(), {1, 2, 3, 4, 5, 2, 3, 6, 1, 2, 3}, 1)), Tokens{4});
}

TEST(NgramDrafter, LongMatchesAreLikelierAndPlacesThatBranchAreNot) {
  const Tokens eight = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8};
  const float sure = propose(*fresh(), eight, 1)[0].hit;
  const float two = propose(*fresh(), {1, 2, 3, 4, 1, 2}, 1)[0].hit;
  const float branching = propose(*fresh(), {1, 2, 3, 1, 2, 4, 1, 2}, 1)[0].hit;
  EXPECT_GT(sure, two);
  EXPECT_GT(two, branching);
}

// Whether it was verified or not: the text says what came.
TEST(NgramDrafter, LearnsHowOftenItIsRight) {
  for (const bool comes : {true, false}) {
    const auto drafter = fresh();
    Tokens text;
    float first = 0, last = 0;
    for (int32_t i = 0; i < 200; ++i) {
      text.insert(text.end(), {1000 + 3 * i, 1001 + 3 * i, 1002 + 3 * i, 1, 1000 + 3 * i, 1001 + 3 * i});
      last = propose(*drafter, text, 1)[0].hit;
      if (i == 0) first = last;
      text.push_back(comes ? 1002 + 3 * i : 2);
    }
    if (comes)
      EXPECT_GT(last, 0.9f);
    else
      EXPECT_LT(last, first / 3);
  }
}

// A text whose last token alone stood there before is guessed from, too.
TEST(NgramDrafter, TakesAMatchOfOneTokenWhereThereIsNoLonger) {
  const auto drafts = propose(*fresh(), {1, 2, 3, 4, 9, 2}, 1);
  EXPECT_EQ(tokens_of(drafts), Tokens{3});
  EXPECT_LT(drafts[0].hit, propose(*fresh(), {1, 2, 3, 4, 1, 2}, 1)[0].hit);
}

// What all requests of one engine have learned serves the next; its own luck is its own.
TEST(NgramDrafter, SharesWhatItLearnsButNotItsTexts) {
  const MakeDrafter make = ngram_drafters();
  const auto one = make({});
  Tokens text;
  for (int32_t i = 0; i < 300; ++i) {
    text.insert(text.end(), {1000 + i, 2000 + i, 1, 1000 + i, 2000 + i});
    propose(*one, text, 1);
    text.push_back(2);
  }
  const auto other = make({});
  EXPECT_TRUE(propose(*other, {1000, 2000}).empty());
  EXPECT_LT(propose(*other, {5, 6, 7, 5, 6}, 1)[0].hit, propose(*fresh(), {5, 6, 7, 5, 6}, 1)[0].hit / 2);
}

TEST(NgramDrafter, ReadsALongPromptInParts) {
  Tokens text;
  for (int32_t i = 0; i < 20000; ++i) text.push_back(i % 16384);
  const auto drafter = fresh();
  EXPECT_TRUE(propose(*drafter, text, 2).empty());
  EXPECT_TRUE(propose(*drafter, text, 2).empty());
  EXPECT_EQ(tokens_of(propose(*drafter, text, 2)), (Tokens{3616, 3617}));
}

TEST(NgramDrafter, HoldsItsUserToATextThatGrows) {
  const auto drafter = fresh();
  propose(*drafter, {1, 2, 3});
  expect_refused([&] { propose(*drafter, {1, 2}); }, "a text of 3 tokens has 2 now");
}

}  // namespace
}  // namespace quire::engine
