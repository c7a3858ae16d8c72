#include "engine/prefill_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/scheduler.h"
#include "engine/testing.h"

namespace quire::engine {
namespace {

// A machine on which a step takes `empty` seconds, `decode` for each request that decodes and `row` for each row of a
// prompt.
struct Machine {
  double empty = 0.003, decode = 0.0005, row = 0.0005;

  double step(int32_t decoding, int32_t rows) const { return empty + decode * decoding + row * rows; }
  double stretch(int32_t decoding, int32_t rows) const { return step(decoding, rows) / step(decoding, 0); }
  void take(PrefillBudget& budget, int32_t decoding, int32_t rows) const {
    budget.measured(decoding, rows, std::chrono::duration<double>(step(decoding, rows)));
  }
  // Some steps without prompts, then the rows that steps beside a long prompt come to.
  int32_t settled(PrefillBudget& budget, int32_t decoding) const {
    for (int i = 0; i < 5; ++i) take(budget, decoding, 0);
    for (int i = 0; i < 60; ++i) take(budget, decoding, budget.rows(decoding));
    return budget.rows(decoding);
  }
};

TEST(PrefillBudget, UnknownRowsCountLikeRequestsAndEveryOtherStepHasNone) {
  PrefillBudget budget(64);
  EXPECT_EQ(budget.rows(1), 1);
  EXPECT_EQ(budget.rows(8), 7);
  EXPECT_EQ(PrefillBudget(5).rows(8), 5);
  Machine().take(budget, 8, 7);
  EXPECT_EQ(budget.rows(8), 0);
}

TEST(PrefillBudget, StretchesAStepAsFarAsItMay) {
  for (const double row : {0.0002, 0.0005, 0.002})
    for (const int32_t decoding : {1, 4, 16, 64}) {
      PrefillBudget budget(512);
      const Machine machine{.row = row};
      const int32_t rows = machine.settled(budget, decoding);
      EXPECT_LE(machine.stretch(decoding, rows), 1.91);
      EXPECT_GE(machine.stretch(decoding, rows + 1), 1.85) << rows << " rows beside " << decoding;
    }
}

// A machine that reads its weights in 4 ms and multiplies whole tiles of rows meanwhile, or for longer: no part of a
// tile is paid for and not used, and a second brings more rows of prompts than without tiles.
TEST(PrefillBudget, FillsTilesOfRows) {
  constexpr int32_t kTile = 128;
  const auto seconds = [](int32_t decoding, int32_t rows) {
    const double weights = 0.004 + 0.00002 * decoding;
    return rows == 0 ? weights : std::max(weights, 0.0006 + 0.000024 * ((decoding + rows + kTile - 1) / kTile * kTile));
  };
  const auto settled = [&](PrefillBudget budget, int32_t decoding) {
    for (int i = 0; i < 60; ++i) {
      const int32_t rows = i < 5 ? 0 : budget.rows(decoding);
      budget.measured(decoding, rows, std::chrono::duration<double>(seconds(decoding, rows)));
    }
    return budget.rows(decoding);
  };
  for (const int32_t decoding : {1, 8, 40, 64, 126, 200}) {
    const int32_t rows = settled(PrefillBudget(512, kTile), decoding), any = settled(PrefillBudget(512), decoding);
    EXPECT_EQ((decoding + rows) % kTile, 0) << rows << " rows beside " << decoding;
    EXPECT_LE(seconds(decoding, rows), 2 * seconds(decoding, 0)) << rows << " rows beside " << decoding;
    EXPECT_GE(rows / seconds(decoding, rows), any / seconds(decoding, any)) << "beside " << decoding;
  }
  EXPECT_EQ(PrefillBudget(512, kTile).rows(130), 117) << "whole tiles have no row for prompts";
}

// Requests that decode come and go, and their rows cost less or more than those of prompts.
TEST(PrefillBudget, TellsRowsOfPromptsFromRequestsThatDecode) {
  for (const double row : {0.0001, 0.0005, 0.0025}) {
    PrefillBudget budget(512);
    const Machine machine{.row = row};
    for (int i = 0; i < 300; ++i) {
      const int32_t decoding = 1 + i / 7 * 5 % 16, rows = budget.rows(decoding);
      if (i > 20) {
        EXPECT_LE(machine.stretch(decoding, rows), 2) << "step " << i;
        EXPECT_GE(machine.stretch(decoding, rows + 1), 1.5) << "step " << i;
      }
      machine.take(budget, decoding, rows);
    }
  }
}

TEST(PrefillBudget, FollowsACostThatGrows) {
  PrefillBudget budget(512);
  Machine machine;
  machine.settled(budget, 4);
  machine.row *= 3;  // deep in a prompt
  for (int i = 0; i < 300; ++i) machine.take(budget, 4, i % 20 ? budget.rows(4) : 0);
  EXPECT_NEAR(machine.stretch(4, budget.rows(4)), 1 + PrefillBudget::kShare, 0.3);
}

TEST(PrefillBudget, RemembersWhatARowCostsWhileThereAreNone) {
  PrefillBudget budget(512);
  const Machine machine;
  const int32_t before = machine.settled(budget, 4);
  for (int i = 0; i < 2000; ++i) machine.take(budget, 4, 0);
  EXPECT_NEAR(budget.rows(4), before, 1);
}

TEST(PrefillBudget, KeepsItsBounds) {
  PrefillBudget narrow(32), slow(512);
  EXPECT_EQ((Machine{.row = 1e-9}).settled(narrow, 1), 32);
  EXPECT_EQ((Machine{.empty = 0, .decode = 1, .row = 1}).settled(slow, 1), 1);
  PrefillBudget one(1);
  EXPECT_EQ(Machine().settled(one, 4), 1);
}

TEST(PrefillBudget, OneOddStepChangesLittle) {
  PrefillBudget budget(512);
  const Machine machine;
  const int32_t before = machine.settled(budget, 16);
  budget.measured(16, before, std::chrono::duration<double>(30));  // the process was stopped
  EXPECT_NEAR(budget.rows(16), before, before * 0.3);
}

// --- with the scheduler: steps take as long as the machine says

struct Simulated {
  double worst = 0;         // how far a step was stretched, once costs are known
  double prompt_share = 0;  // of the time
  int32_t prompts_done = 0;
};

// `decoding` requests decode all the time, and `prompts` more wait all the time, of which there is room for `room`.
Simulated simulate(const Machine& machine, int32_t decoding, int32_t prompts, int32_t room) {
  constexpr int32_t kPrompt = 300, kSteps = 400;
  const SchedulerLimits limits{.context = 1000,
                               .pages = 4000,
                               .page_size = PageSize(16),
                               .running = decoding + room,
                               .prefill_chunk = 512,
                               .mixed_chunk = 512,
                               .prefix_cache = false};
  Scheduler scheduler(limits);
  testing::HashModel model(limits);
  RequestId last = 0;
  Simulated result;
  const auto add = [&](int32_t length, int32_t answer, const Listener& listener) {
    scheduler.add(++last,
                  {.prompt = std::vector<int32_t>(length, static_cast<int32_t>(last % 50)), .max_new_tokens = answer},
                  listener);
  };
  for (int32_t i = 0; i < decoding; ++i) add(5, 900, [](const Output&) {});
  double whole = 0, of_prompts = 0;
  for (int32_t step = 0; step < kSteps; ++step) {
    while (step > 3 && scheduler.running() + scheduler.waiting() < decoding + prompts)
      add(kPrompt, 1, [&](const Output&) { ++result.prompts_done; });
    const Batch batch = scheduler.plan();
    const auto decoders = static_cast<int32_t>(
        std::count_if(batch.shares.begin(), batch.shares.end(), [](const Share& share) { return !share.prefills; }));
    const int32_t rows = batch.rows() - decoders;
    const double time = machine.step(decoders, rows);
    if (decoders > 0 && step > 10) result.worst = std::max(result.worst, time / machine.step(decoders, 0));
    if (step > 10) {
      whole += time;
      of_prompts += machine.row * rows;
    }
    scheduler.advance(batch);
    StepResults results = model.run(batch, scheduler.table());
    results.time = std::chrono::duration<double>(time);
    scheduler.settle(batch, results);
  }
  result.prompt_share = of_prompts / whole;
  return result;
}

TEST(PrefillBudget, NobodyFallsBelowHalfPaceHoweverManyPromptsWait) {
  for (const Machine& machine : {Machine{}, Machine{.row = 0.0001}, Machine{.decode = 0.0002, .row = 0.002}})
    for (const int32_t decoding : {1, 8})
      for (const int32_t prompts : {1, 4, 16, 64}) {
        const Simulated result = simulate(machine, decoding, prompts, 2);
        SCOPED_TRACE(::testing::Message() << prompts << " prompts beside " << decoding);
        EXPECT_LE(result.worst, 2);
        EXPECT_GT(result.prompt_share, 0.3) << "prompts must get on, too";
        EXPECT_GT(result.prompts_done, 0);
      }
}

// --- requests that come together, on a device that computes many rows of prompts for less than few

struct Burst {
  double seconds = 0;            // until all have all their tokens
  double worst_beside_old = 0;   // how far a step was stretched in which somebody had more than the first tokens
  int32_t most_rows_beside = 0;  // of prompts, beside the first tokens of any one request
};

// 64 requests of 128 + 64 tokens, the first a few milliseconds before the others, which come `apart` seconds after each
// other.
Burst burst(int32_t first_wait, double apart) {
  constexpr int32_t kRequests = 64, kPrompt = 128, kAnswer = 64, kChunk = 8192;
  const SchedulerLimits limits{.context = 1000,
                               .pages = 4000,
                               .page_size = PageSize(16),
                               .running = kRequests,
                               .prefill_chunk = kChunk,
                               .mixed_chunk = 512,
                               .prefix_cache = false,
                               .row_tile = 128,
                               .first_wait = first_wait};
  const auto step_seconds = [](int32_t decoding, int32_t rows) {
    const int32_t tiles = (decoding + rows + 127) / 128;
    const double weights = 0.004 + 0.000022 * decoding;
    return rows == 0 ? weights : std::max(weights, 0.0016 + 0.0031 * tiles);
  };
  Scheduler scheduler(limits);
  testing::HashModel model(limits);
  std::vector<int32_t> tokens(kRequests, 0), rows_beside(kRequests, 0);
  int32_t come = 0;
  Burst result;
  while (come < kRequests || scheduler.running() > 0) {
    for (; come < kRequests && result.seconds >= apart * come; ++come)
      scheduler.add(come + 1, {.prompt = std::vector<int32_t>(kPrompt, come % 50), .max_new_tokens = kAnswer},
                    [&tokens, come](const Output&) { ++tokens[come]; });
    const Batch batch = scheduler.plan();
    const int32_t rows = batch.prompt_rows(), decoding = batch.rows() - rows;
    const double time = step_seconds(decoding, rows);
    for (const Share& share : batch.shares) {
      if (share.prefills) continue;
      const auto of = static_cast<size_t>(share.id - 1);
      if (tokens[of] <= SchedulerLimits::kFirstTokens)
        result.most_rows_beside = std::max(result.most_rows_beside, rows_beside[of] += rows);
      else
        result.worst_beside_old = std::max(result.worst_beside_old, time / step_seconds(decoding, 0));
    }
    result.seconds += time;
    scheduler.advance(batch);
    StepResults results = model.run(batch, scheduler.table());
    results.time = std::chrono::duration<double>(time);
    scheduler.settle(batch, results);
  }
  return result;
}

TEST(PrefillBudget, RequestsThatComeTogetherAreComputedTogether) {
  constexpr int32_t kCredit = 8192, kSteps = SchedulerLimits::kFirstTokens;
  for (const double apart : {0.0001, 0.0005, 0.002, 0.02}) {
    SCOPED_TRACE(::testing::Message() << apart << " s apart");
    const Burst cut = burst(0, apart), together = burst(kCredit, apart);
    EXPECT_LE(together.seconds, (apart < 0.001 ? 0.93 : 1.005) * cut.seconds);
    EXPECT_LE(together.worst_beside_old, 2) << "nobody falls below half pace later on";
    EXPECT_LE(together.most_rows_beside, kCredit + kSteps * 512);
  }
}

}  // namespace
}  // namespace quire::engine
