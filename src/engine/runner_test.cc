#include "engine/runner.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/testing/expect_refused.h"
#include "model/testing.h"

namespace quire::engine {
namespace {

using model::testing::random_ids;
using model::testing::TinyFile;
using model::testing::TinyModel;

// Texts with pages of their own, run in whatever shares a test asks for.
class RunnerTest : public ::testing::Test {
 protected:
  static constexpr int32_t kContext = 128;
  static constexpr SchedulerLimits kLimits = {.context = kContext,
                                              .pages = 40,
                                              .page_size = PageSize(16),
                                              .running = 5,
                                              .prefill_chunk = 64,
                                              .mixed_chunk = 16,
                                              .prefix_cache = true};

  explicit RunnerTest(const TinyModel& tiny = {.context = kContext}) : file_(tiny) {}

  struct Text {
    std::vector<int32_t> tokens;
    RequestRow row;
    int32_t computed = 0;
    std::shared_ptr<const Request> request = std::make_shared<const Request>();
  };
  struct Part {
    Text* text;
    int32_t count;
    bool draws;
    PositionRange kept = {};
  };

  Text& text(uint64_t seed) {
    Text& text = texts_.emplace_back(random_ids(kContext, model_.config().vocabulary, seed), table_.open());
    EXPECT_TRUE(table_.reserve(text.row, {kContext}));
    return text;
  }

  Runner::Outputs run_all(const std::vector<Part>& parts) {
    Batch batch;
    for (const auto& [text, count, draws, kept] : parts)
      batch.add({.id = 1,
                 .row = text->row,
                 .position = text->computed,
                 .count = count,
                 .draws = draws,
                 .kept = kept,
                 .request = text->request},
                text->tokens);
    const Runner::Outputs outputs = runner_.run(batch);
    for (const Part& part : parts) part.text->computed += part.count;
    return outputs;
  }
  static std::vector<float> flat(const Rows<const float>& rows) {
    std::vector<float> all;
    for (int64_t i = 0; i < rows.rows; ++i) all.insert(all.end(), rows.row(i), rows.row(i) + rows.dim);
    return all;
  }
  // The logits of the shares that draw, one row after the other.
  std::vector<float> run(const std::vector<Part>& parts) { return flat(run_all(parts).logits); }
  std::vector<float> run_one(Text& text, int32_t count) { return run({{&text, count, true}}); }
  std::vector<float> row(const std::vector<float>& logits, int32_t index) const {
    const int64_t width = model_.config().vocabulary;
    return {logits.begin() + index * width, logits.begin() + (index + 1) * width};
  }

  Exec exec_{{.threads = 2}};
  TinyFile file_;
  model::Model model_{file_.path(), exec_};
  kv::PagePool pool_{kLimits.pages + 1, kLimits.page_size};
  kv::RequestTable table_{pool_, kLimits.running + 1, kContext};
  std::deque<Text> texts_;
  Runner runner_{model_, kLimits, Dtype::bf16, table_, exec_};
};

TEST_F(RunnerTest, RecordedAndEagerStepsGiveTheSameLogits) {
  Text &recorded = text(1), &eager = text(1), &other = text(2);
  EXPECT_EQ(run_one(recorded, 30), run_one(eager, 30));
  const std::vector<float> alone = run_one(recorded, 1);
  const std::vector<float> mixed = run({{&eager, 1, true}, {&other, 17, true}});
  EXPECT_EQ(alone, row(mixed, 0));
  EXPECT_NE(alone, row(mixed, 1));
}

TEST_F(RunnerTest, GivesTheLogitsOfTheSharesThatWantThem) {
  Text &a = text(1), &b = text(2), &c = text(3), &whole = text(3);
  const std::vector<float> logits = run({{&a, 5, false}, {&b, 9, true}, {&c, 20, false}});
  ASSERT_EQ(std::ssize(logits), model_.config().vocabulary);
  run({{&a, 1, false}, {&c, 1, false}});
  EXPECT_EQ(run_one(c, 3), run_one(whole, 24)) << "chunks without logits are computed all the same";
}

TEST_F(RunnerTest, GivesTheRowsThatAreWantedInTheOrderOfTheirKinds) {
  Text &scored = text(1), &pooled = text(2), &draws = text(3);
  pooled.request = std::make_shared<const Request>(Request{.max_new_tokens = 0, .pooling = Pooling::mean});
  const Runner::Outputs all = run_all({{&pooled, 9, false, {6, 9}}, {&scored, 20, true, {4, 7}}, {&draws, 5, true}});
  const std::vector<float> logits = flat(all.logits), rows = flat(all.pooled);
  ASSERT_EQ(all.logits.rows, 5) << "two that draw, three that are scored";
  ASSERT_EQ(all.pooled.rows, 3);
  ASSERT_EQ(all.pooled.dim, model_.config().width);

  scored.computed = pooled.computed = draws.computed = 0;
  run({{&scored, 4, false}, {&pooled, 6, false}});
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(row(logits, 2 + i), run_one(scored, 1)) << "position " << 4 + i;
  EXPECT_EQ(row(logits, 0), run_one(scored, 13));
  EXPECT_EQ(row(logits, 1), run_one(draws, 5));
  std::vector<float> singly;
  for (int32_t position = 6; position < 9; ++position) {
    const std::vector<float> one_row = flat(run_all({{&pooled, 1, false, {position, position + 1}}}).pooled);
    singly.insert(singly.end(), one_row.begin(), one_row.end());
  }
  EXPECT_EQ(rows, singly);
}

// Of quantised weights, with logits so far apart that most are far from their row's largest.
class RunnerOfSpreadLogits : public RunnerTest {
 protected:
  RunnerOfSpreadLogits()
      : RunnerTest({.architecture = "granite",
                    .context = kContext,
                    .type = BlockType::q8_0,
                    .change = [](model::testing::GgufWriter& file) { file.set("granite.logit_scale", 0.05f); }}) {}

  Text& text_for(Request request) {
    Text& asked = text(1);
    asked.request = std::make_shared<const Request>(std::move(request));
    return asked;
  }
  std::vector<float> logits_for(Request request) { return close(text_for(std::move(request))); }
  std::vector<float> close(Text& asked) {
    const std::vector<float> logits = run_one(asked, 20);
    table_.close(asked.row);
    return logits;
  }
};

int64_t different(const std::vector<float>& a, const std::vector<float>& b, float reach) {
  const float least = *std::ranges::max_element(a) - reach;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] >= least && a[i] != b[i];
  return count;
}

class AnyTokenMask final : public TokenMask {
 public:
  const uint32_t* next() override { return nullptr; }
  void accept(int32_t) override {}
};

TEST_F(RunnerOfSpreadLogits, ArePreciseAsFarAsARequestsDrawsReach) {
  const std::vector<float> precise = logits_for({.sampling = {.logit_bias = {{3, 1.0f}}}});
  EXPECT_EQ(logits_for({.sampling = {.repetition_penalty = 1.1f}}), precise);
  EXPECT_EQ(logits_for({.sampling = {.frequency_penalty = 0.5f}}), precise);
  EXPECT_EQ(logits_for({.sampling = {.presence_penalty = 0.5f}}), precise);
  EXPECT_EQ(logits_for({.mask = std::make_shared<AnyTokenMask>()}), precise);
  EXPECT_EQ(logits_for({.min_new_tokens = 1}), precise);

  const std::vector<float> usual = logits_for({}), hot = logits_for({.sampling = {.temperature = 2}});
  EXPECT_EQ(logits_for({.sampling = {.temperature = 0}}), usual);
  constexpr float kLess = 0.5f;  // than the reach of coarse logits
  EXPECT_EQ(different(precise, usual, ops::kUsualReach - kLess), 0);
  EXPECT_EQ(different(precise, hot, 2 * ops::kUsualReach - kLess), 0);
  EXPECT_GT(different(precise, usual, 2 * ops::kUsualReach - kLess), 0);
  EXPECT_GT(different(precise, hot, ops::kWholeReach), 0);
}

TEST_F(RunnerOfSpreadLogits, AreThoseOfEachRequestInAnyBatchAndChunks) {
  const std::vector<float> usual = logits_for({}), precise = logits_for({.min_new_tokens = 1});
  ASSERT_NE(usual, precise);
  Text &one = text_for({}), &other = text_for({.min_new_tokens = 1}), &scored = text_for({.max_new_tokens = 0});
  run({{&one, 19, false}, {&other, 7, false}});
  run({{&other, 12, false}});
  const Runner::Outputs outputs = run_all({{&one, 1, true}, {&scored, 20, false, {19, 20}}, {&other, 1, true}});
  const std::vector<float> logits = flat(outputs.logits);
  EXPECT_EQ(row(logits, 0), usual);
  EXPECT_EQ(row(logits, 1), precise);
  EXPECT_EQ(row(logits, 2), usual) << "a prompt's rows are scored as they would be drawn from";
  one.computed = other.computed = 19;
  const std::vector<float> recorded = run({{&other, 1, true}, {&one, 1, true}});
  EXPECT_EQ(row(recorded, 0), precise);
  EXPECT_EQ(row(recorded, 1), usual);
}

TEST_F(RunnerTest, EveryBatchSizeFindsAGraph) {
  std::vector<Text*> texts;
  for (uint64_t seed = 0; seed < 5; ++seed) run_one(*texts.emplace_back(&text(seed)), 20);
  std::vector<float> first;
  for (size_t live = 1; live <= texts.size(); ++live) {
    std::vector<Part> parts;
    for (size_t i = 0; i < live; ++i) {
      texts[i]->computed = 20;
      parts.push_back({texts[i], 1, true});
    }
    const std::vector<float> logits = run(parts);
    if (first.empty()) first = logits;
    EXPECT_EQ(row(logits, 0), first) << live << " requests";
  }
}

TEST_F(RunnerTest, RefusesAStepOutsideItsLimits) {
  Text& one = text(1);
  one.computed = kContext;
  one.tokens.push_back(1);
  expect_refused([&] { run_one(one, 1); }, "position 128 of request row");
  Text& other = text(2);
  expect_refused([&] { run_one(other, 70); }, "a step of 70 rows of 1 requests, 1 wanted; up to 69 of 5 have room");
  Text& third = text(3);
  expect_refused(
      [&] {
        run_all({{&other, 64, true, {0, 64}}, {&third, 5, true, {0, 5}}});
      },
      "71 wanted; up to 69 of 5 have room, 69 wanted");
}

}  // namespace
}  // namespace quire::engine
