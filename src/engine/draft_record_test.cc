#include "engine/draft_record.h"

#include <gtest/gtest.h>

namespace quire::engine {
namespace {

// Proposes token 1 and says so with `said`; of `trials` times it comes in `come`, the first ones.
void run(DraftRecord& record, float said, int trials, int come) {
  std::vector<int32_t> text = {0};
  for (int i = 0; i < trials; ++i) {
    const DraftToken draft{.token = 1, .hit = said};
    record.propose(text, {&draft, 1});
    text.push_back(i < come ? 1 : 2);
    record.learn(text);
  }
}

TEST(DraftRecord, BelievesAModelUntilItKnowsBetter) {
  const auto rates = std::make_shared<DraftRates>();
  for (const float said : {0.05f, 0.5f, 0.95f}) EXPECT_NEAR(DraftRecord(rates).hit(said), said, 0.03);
  EXPECT_LE(DraftRecord(rates).hit(1.0f), 0.99f);
}

TEST(DraftRecord, LearnsHowOftenWhatIsSaidComes) {
  const auto rates = std::make_shared<DraftRates>();
  DraftRecord teacher(rates);
  run(teacher, 0.5f, 2000, 2000);
  run(teacher, 0.9f, 2000, 0);
  const DraftRecord other(rates);  // whose own luck is nothing yet
  EXPECT_GT(other.hit(0.5f), 0.9f);
  EXPECT_LT(other.hit(0.9f), 0.1f);
  EXPECT_NEAR(other.hit(0.2f), 0.2f, 0.03f);
}

TEST(DraftRecord, ARequestsOwnBadLuckIsAFactorAndGoodLuckIsNotCountedOn) {
  const auto rates = std::make_shared<DraftRates>();
  DraftRecord lucky(rates), unlucky(rates);
  run(lucky, 0.5f, 30, 30);
  run(unlucky, 0.5f, 30, 0);
  EXPECT_FLOAT_EQ(lucky.hit(0.3f), DraftRecord(rates).hit(0.3f));
  EXPECT_LT(unlucky.hit(0.3f), 0.8f * DraftRecord(rates).hit(0.3f));
}

// What stands behind a draft that did not come was never asked about.
TEST(DraftRecord, StopsAtTheFirstThatDidNotCome) {
  const auto rates = std::make_shared<DraftRates>();
  DraftRecord record(rates);
  const std::vector<int32_t> text = {0};
  const std::vector<int32_t> after = {0, 1, 5, 3};
  const std::vector<DraftToken> drafts = {{1, 0.1f}, {2, 0.3f}, {3, 0.6f}};
  record.propose(text, drafts);
  record.learn(after);
  EXPECT_GT(rates->rate(0.1f), 0.15);
  EXPECT_LT(rates->rate(0.3f), 0.32);
  EXPECT_DOUBLE_EQ(rates->rate(0.6f), DraftRates().rate(0.6f));
}

}  // namespace
}  // namespace quire::engine
