#include "engine/draft_budget.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

using Chain = std::vector<DraftToken>;

Chain chain(std::initializer_list<float> hits) {
  Chain drafts;
  for (const float hit : hits) drafts.push_back({.token = static_cast<int32_t>(drafts.size()), .hit = hit});
  return drafts;
}

// What is left of each chain.
std::vector<size_t> cut(DraftBudget& budget, const DraftBudget::StepAhead& step, std::vector<Chain> chains) {
  std::vector<Chain*> pointers;
  for (Chain& each : chains) pointers.push_back(&each);
  budget.cut(step, pointers);
  std::vector<size_t> lengths;
  for (const Chain& each : chains) lengths.push_back(each.size());
  return lengths;
}

using Lengths = std::vector<size_t>;

TEST(DraftBudget, ChainsGetAsLongAsTheyPay) {
  DraftBudget budget(64, 0.2);
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({1, 1, 1, 1})}), Lengths{4});
  // (1 + 0.5) / 1.2 pays; a path of 0.25 for another 0.2 does not.
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({0.5, 0.5, 0.5})}), Lengths{1});
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({0.15f})}), Lengths{0});
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 2}, {chain({1, 1, 1, 1})}), Lengths{2}) << "no more have room";
}

// A weak draft before a strong one: both pay together.
TEST(DraftBudget, LooksBeyondADraftThatDoesNotPayAlone) {
  DraftBudget budget(64, 0.2);
  for (int i = 0; i < 200; ++i)
    for (const int32_t rows : {1, 2, 3, 4}) budget.measured(rows, std::chrono::duration<double>(rows == 1 ? 1 : 1.6));
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({0.5f, 0.95f, 0.95f})}), Lengths{3});
}

DraftReach reaching(const Chain& drafts, int32_t deepest = 7) {
  DraftReach reach(deepest);
  for (int i = 0; i < 200; ++i) reach.add(drafts);
  return reach;
}

// Of a pass as of a row: what it brings is to be worth both.
TEST(DraftBudget, AsManyPassesAsUsuallyPay) {
  const DraftBudget budget(64, 0.1, 0.1);
  const DraftReach sure = reaching(chain({1, 1, 1, 1, 1, 1, 1})),
                   good = reaching(chain({0.6f, 0.6f, 0.6f, 0.6f, 0.6f})), poor = reaching(chain({0.2f})),
                   none = reaching({});
  const auto passes = [&](const std::vector<const DraftReach*>& reaches, int32_t most = 6) {
    return budget.passes({.decoding = static_cast<int32_t>(reaches.size()), .most = 64}, reaches, most);
  };
  EXPECT_EQ(passes({&sure}), 6);
  EXPECT_EQ(passes({&sure}, 2), 2);
  // (1 + 0.6) / 1.1, then 0.36 for 0.2 more, 0.216 for as much: 1.455, 1.508, 1.451.
  EXPECT_EQ(passes({&good}), 1);
  EXPECT_EQ(passes({&poor}), 0);
  EXPECT_EQ(passes({&none}), 0);
  EXPECT_EQ(passes({&none, &none, &none, &sure}), 6) << "a pass is worth it for one";
}

// Of requests for which there are not rows enough: those that are surest have them, and the first drafts of all are
// worth more than further ones of some.
TEST(DraftBudget, PassesForDraftsThatHaveNoRoomDoNotPay) {
  const DraftBudget budget(64, 0.01, 0.05);
  const DraftReach good = reaching(chain({0.8f, 0.8f, 0.8f, 0.8f, 0.8f}));
  const std::vector<const DraftReach*> reaches(8, &good);
  EXPECT_GT(budget.passes({.decoding = 8, .most = 64}, reaches, 6), 2);
  EXPECT_EQ(budget.passes({.decoding = 8, .most = 8}, reaches, 6), 0);
}

TEST(DraftBudget, IsOneForTheWholeBatch) {
  DraftBudget budget(64, 0.2);
  EXPECT_EQ(cut(budget, {.decoding = 3, .most = 64}, {chain({0.9f, 0.9f}), chain({0.1f}), {}}), (Lengths{2, 0, 0}));
  EXPECT_EQ(cut(budget, {.decoding = 3, .most = 2}, {chain({0.8f, 0.8f}), chain({0.9f}), {}}), (Lengths{1, 1, 0}));
}

// Where a row costs half a step, and sixteen requests are in it, only drafts that are nearly sure pay.
TEST(DraftBudget, BacksOffWithTheBatch) {
  DraftBudget budget(64, 0.5);
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({0.7f})}), Lengths{1});
  EXPECT_EQ(cut(budget, {.decoding = 16, .most = 64}, {chain({0.7f})}), Lengths{0});
}

TEST(DraftBudget, HoldsNobodyUpWhoDoesNotSpeculate) {
  DraftBudget budget(64, 0.25);
  const Chain sure = chain({1, 1, 1, 1, 1, 1});
  EXPECT_EQ(cut(budget, {.decoding = 2, .most = 64, .has_others = true}, {sure}), Lengths{2}) << "1.75 of 1.25";
}

TEST(DraftBudget, HoldsNobodyUpBesidePromptsEither) {
  DraftBudget budget(64, 0.25);
  const Chain sure = chain({1, 1, 1, 1, 1, 1});
  for (const int32_t prompt_rows : {4, 62, 500})
    EXPECT_EQ(cut(budget, {.decoding = 2, .most = 64, .prompt_rows = prompt_rows, .has_others = true}, {sure}),
              Lengths{2})
        << "beside " << prompt_rows;
}

TEST(DraftBudget, BesidePromptsTakesWhatIsLikely) {
  DraftBudget budget(64, 0.01);
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64, .prompt_rows = 8}, {chain({0.9f, 0.8f, 0.8f})}), Lengths{2});
}

// A step of one row takes 1, further ones take 0.1 up to 8 and 0.5 from there on.
TEST(DraftBudget, BesidePromptsARowCostsWhatItAddsToThem) {
  DraftBudget budget(16, 0.1);
  for (int i = 0; i < 2000; ++i)
    for (int32_t rows = 1; rows <= 16; ++rows)
      budget.measured(rows, std::chrono::duration<double>(1 + 0.1 * (rows - 1) + 0.4 * std::max(0, rows - 8)));
  const auto drafts = [&](int32_t decoding, int32_t prompt_rows) {
    return cut(budget, {.decoding = decoding, .most = 8, .prompt_rows = prompt_rows}, {chain({0.7f})})[0];
  };
  EXPECT_EQ(drafts(1, 2), 1u);
  EXPECT_EQ(drafts(1, 10), 1u) << "0.7 of a token in half of a step";
  EXPECT_EQ(drafts(4, 2), 1u);
  EXPECT_EQ(drafts(4, 10), 0u) << "four tokens take 1.3, and this one 0.5";
  const auto time = [&](int32_t prompt_rows, Chain given) {
    std::vector<Chain*> chains = {&given};
    return budget.promise({.decoding = 1, .most = 8, .prompt_rows = prompt_rows}, chains).time;
  };
  EXPECT_DOUBLE_EQ(time(10, {}), time(0, {})) << "what prompts take is theirs";
  EXPECT_NEAR((time(10, chain({0.9f})) - time(10, {})) / (time(0, chain({0.9f})) - time(0, {})), 5, 0.5);
}

// The first row that a step adds may be all but free, and the next ones not.
TEST(DraftBudget, APassIsWeighedBesideTheRowsThatItMayLeadTo) {
  DraftBudget budget(32, 0.1, 0);
  for (int i = 0; i < 1000; ++i)
    for (const int32_t rows : {1, 2, 3, 4, 5}) budget.measured(rows, std::chrono::duration<double>(rows < 3 ? 1 : 1.4));
  EXPECT_NEAR(budget.least_path({.decoding = 1, .most = 8}, 1), 2.5 * 0.1, 0.02);
}

// A price that was guessed, or learned in bad times, is tried again.
TEST(DraftBudget, TriesAgainWhatSeemsNotToPay) {
  DraftBudget budget(64, 0.9);
  size_t tried = 0;
  for (int i = 0; i < 4 * DraftBudget::kProbe; ++i)
    tried += cut(budget, {.decoding = 1, .most = 64}, {chain({0.8f})})[0];
  EXPECT_EQ(tried, 2u) << "after 32 and 64 steps: ever more rarely";
  EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({1})}), Lengths{1});
  for (int i = 0; i < DraftBudget::kProbe; ++i) tried += cut(budget, {.decoding = 1, .most = 64}, {chain({0.8f})})[0];
  EXPECT_EQ(tried, 3u) << "until something has paid";
  for (int i = 0; i < 4 * DraftBudget::kProbe; ++i)
    EXPECT_EQ(cut(budget, {.decoding = 1, .most = 64}, {chain({0.2f})}), Lengths{0}) << "that is hopeless";
}

// Where steps overlap, one with drafts leaves the device without work for a while: a draft must be worth that, too.
TEST(DraftBudget, ATurnIsPartOfThePrice) {
  using std::chrono::duration;
  DraftBudget budget(64, 0.01);
  for (int i = 0; i < 50; ++i) budget.measured(1, duration<double>(400e-6));
  const DraftBudget::StepAhead step{.decoding = 1, .most = 64};
  Chain unsure = chain({0.08f}), likely = chain({0.3f, 0.3f});
  std::vector<Chain*> unsure_one = {&unsure}, likely_one = {&likely};
  EXPECT_TRUE(budget.pays(step, unsure_one));
  for (int i = 0; i < 50; ++i) budget.turned(duration<double>(40e-6));
  EXPECT_FALSE(budget.pays(step, unsure_one)) << "1.08 tokens in 1.11 steps";
  EXPECT_TRUE(budget.pays(step, likely_one));
  EXPECT_EQ(unsure.size(), 1u) << "nothing was cut";
  budget.turned(duration<double>(1.0));  // it was held up by something else
  EXPECT_TRUE(budget.pays(step, likely_one));
}

// --- passes of a draft model

TEST(DraftBudget, APassPaysWhereWhatItBringsIsWorthItsTime) {
  DraftBudget budget(32, 0.1, 0.2);
  EXPECT_NEAR(budget.least_path({.decoding = 1, .most = 8}, 1), 2.5 * 0.3, 1e-9);
  // Four requests in a step of 1.3: each row is a tenth of a step of one, and the pass is shared.
  EXPECT_NEAR(budget.least_path({.decoding = 4, .most = 8}, 4), 2.5 * 4 * (0.1 + 0.05) / 1.3, 1e-9);
  EXPECT_EQ(DraftBudget(32, 0, 0).least_path({.decoding = 1, .most = 8, .prompt_rows = 8}, 1),
            DraftBudget::kBesidePrompts);
}

TEST(DraftBudget, LearnsWhatAPassCosts) {
  using std::chrono::duration;
  DraftBudget budget(32, 0.1, 0.2);
  for (int i = 0; i < 100; ++i) {
    budget.measured(1, duration<double>(0.010));
    budget.drafted(2, duration<double>(0.008));  // two of 4 ms beside steps of 10
  }
  EXPECT_NEAR(budget.least_path({.decoding = 1, .most = 8}, 1), 2.5 * (0.1 + 0.4), 0.05);
  budget.drafted(0, duration<double>(1.0));  // nothing to learn from
  EXPECT_NEAR(budget.least_path({.decoding = 1, .most = 8}, 1), 2.5 * (0.1 + 0.4), 0.05);
}

}  // namespace
}  // namespace quire::engine
