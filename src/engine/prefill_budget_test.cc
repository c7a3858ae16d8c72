#include "engine/prefill_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

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

// Prompts alone were short, and the one beside those who decode is deep; or the other way round.
TEST(PrefillBudget, BesideOthersARowMayCostMoreThanAloneOrLess) {
  for (const double alone : {0.0002, 0.002}) {
    PrefillBudget budget(512);
    for (int i = 0; i < 10; ++i) Machine{.row = alone}.take(budget, 0, 200);
    const Machine machine;
    for (int i = 0; i < 300; ++i) machine.take(budget, 4, budget.rows(4));
    int32_t rows = 0;
    for (int i = 0; i < 20; ++i) {
      rows += budget.rows(4);
      machine.take(budget, 4, budget.rows(4));
    }
    EXPECT_NEAR(machine.stretch(4, rows / 20), 1 + PrefillBudget::kShare, 0.3) << alone << " s a row alone";
  }
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

// The first steps beside a prompt have few rows, and one of them was held up: rows seem dear, all steps have one, and
// nothing tells what it costs.
TEST(PrefillBudget, AnOddStepAtFirstStarvesNobody) {
  const Machine machine{.empty = 0.0016, .decode = 0.0004, .row = 0.0004};
  const auto rows_after = [&](int32_t prompts_alone) {
    PrefillBudget budget(64);
    if (prompts_alone > 0) machine.take(budget, 0, prompts_alone);
    for (const int32_t rows : {1, 0, 3, 1, 1}) {
      const double held_up = rows == 3 ? 0.005 : 0;
      budget.measured(1, rows, std::chrono::duration<double>(machine.step(1, rows) + held_up));
    }
    for (int i = 0; i < 10; ++i) machine.take(budget, 1, budget.rows(1));
    return budget.rows(1);
  };
  EXPECT_EQ(rows_after(0), 1) << "no prompt was alone: the trap is there";
  const int32_t rows = rows_after(124);
  EXPECT_GE(rows, 3);
  EXPECT_LE(machine.stretch(1, rows), 2);
}

// In memory that nobody has touched every other step takes two or three times as long, whoever computes in it.
TEST(PrefillBudget, StepsThatAreHeldUpLeavePromptsTheirShare) {
  const Machine machine{.empty = 0.0016, .decode = 0.00035, .row = 0.0004};
  const Machine usual{.empty = machine.empty + 0.005, .decode = machine.decode, .row = machine.row};
  std::mt19937 random(1);
  PrefillBudget budget(64);
  const auto take = [&](int32_t decoding, int32_t rows) {
    const double held_up = 0.005 * static_cast<double>(random() % 2 * (1 + random() % 3));
    budget.measured(decoding, rows, std::chrono::duration<double>(machine.step(decoding, rows) + held_up));
  };
  take(0, 44);
  take(0, 124);
  for (int burst = 0; burst < 4; ++burst) {
    for (int32_t decoding = 1; decoding <= 16; ++decoding) {
      const int32_t rows = budget.rows(decoding);
      if (burst > 0) {
        EXPECT_GE(machine.stretch(decoding, rows + 1), 1.25) << decoding << " of burst " << burst;
        EXPECT_LE(usual.stretch(decoding, rows), 3) << decoding << " of burst " << burst;
      }
      take(decoding, rows);
    }
    for (int i = 0; i < 80; ++i) take(16, 0);
    for (int32_t decoding = 15; decoding >= 1; --decoding) take(decoding, 0);
  }
}

// Nor does the first step of all, which finds memory that nobody has touched.
TEST(PrefillBudget, AnOddStepOfPromptsAloneChangesLittle) {
  const Machine machine;
  PrefillBudget budget(512), odd(512);
  odd.measured(0, 1, std::chrono::duration<double>(0.3));
  for (PrefillBudget* each : {&budget, &odd}) {
    machine.take(*each, 0, 200);
    machine.settled(*each, 4);
  }
  EXPECT_EQ(odd.rows(4), budget.rows(4));
  for (int i = 0; i < 20; ++i) machine.take(odd, 0, 200);
  odd.measured(0, 200, std::chrono::duration<double>(30));
  EXPECT_NEAR(odd.rows(4), budget.rows(4), 1);
}

// --- with the scheduler: steps take as long as the machine says

// Makes steps longer, and brings nothing.
MakeDrafter sure_and_wrong() {
  class SureAndWrong final : public Drafter {
    void propose(std::span<const int32_t>, int32_t most, std::vector<DraftToken>& drafts) override {
      drafts.assign(most, {.token = testing::kVocabulary, .hit = 0.99f});
    }
  };
  return [](const Request&) { return std::make_unique<SureAndWrong>(); };
}

// One step of the scheduler, which takes so long by its rows that decode and those of prompts.
using SecondsOf = std::function<double(int32_t decoding, int32_t rows)>;
Batch take_step(Scheduler& scheduler, testing::HashModel& model, const SecondsOf& seconds_of) {
  const Batch batch = scheduler.plan();
  scheduler.advance(batch);
  StepResults results = model.run(batch, scheduler.table());
  const int32_t rows = batch.prompt_rows();
  results.time = std::chrono::duration<double>(seconds_of(batch.rows() - rows, rows));
  scheduler.settle(batch, results);
  return batch;
}

struct Simulated {
  double worst = 0;         // how far a step was stretched, once costs are known
  double prompt_share = 0;  // of the time
  int32_t prompts_done = 0;
};

// `decoding` requests decode all the time, and `prompts` more wait all the time, of which there is room for `room`.
Simulated simulate(const Machine& machine, int32_t decoding, int32_t prompts, int32_t room, int32_t drafts = 0) {
  constexpr int32_t kPrompt = 300, kSteps = 400;
  const SchedulerLimits limits{.context = 1000,
                               .pages = 4000,
                               .page_size = PageSize(16),
                               .running = decoding + room,
                               .prefill_chunk = 512,
                               .mixed_chunk = 512,
                               .prefix_cache = false,
                               .drafts = drafts};
  Scheduler scheduler(limits, drafts > 0 ? sure_and_wrong() : MakeDrafter());
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
    const Batch batch =
        take_step(scheduler, model, [&](int32_t decoders, int32_t rows) { return machine.step(decoders, rows); });
    const int32_t rows = batch.prompt_rows(), decoders = batch.rows() - rows;
    const double time = machine.step(decoders, rows);
    if (decoders > 0 && step > 10) result.worst = std::max(result.worst, time / machine.step(decoders, 0));
    if (step > 10) {
      whole += time;
      of_prompts += machine.row * rows;
    }
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

TEST(PrefillBudget, PromptsHaveTheirShareOfStepsWithDrafts) {
  const Machine machine{.empty = 0.002, .decode = 0.0005, .row = 0.0005};
  const Simulated without = simulate(machine, 1, 4, 2), with = simulate(machine, 1, 4, 2, 7);
  EXPECT_GT(without.prompt_share, 0.4);
  EXPECT_GT(with.prompt_share, 0.4) << "eight rows take 6 ms, one takes 2.5";
  EXPECT_LE(with.worst, 2);
}

// Fifteen requests come while the first one decodes, and the first steps with prompts are held up.
TEST(PrefillBudget, ABurstDoesNotWaitBehindAnOddStep) {
  const Machine machine{.empty = 0.0016, .decode = 0.0004, .row = 0.0004};
  const SchedulerLimits limits{.context = 1000,
                               .pages = 4000,
                               .page_size = PageSize(16),
                               .running = 16,
                               .prefill_chunk = 512,
                               .mixed_chunk = 64,
                               .prefix_cache = false};
  Scheduler scheduler(limits);
  testing::HashModel model(limits);
  int32_t begun = 0, steps = 0;
  const auto add = [&](RequestId id, int32_t length) {
    scheduler.add(id, {.prompt = std::vector<int32_t>(length, 1), .max_new_tokens = 500},
                  [&begun, first = true](const Output&) mutable { begun += std::exchange(first, false); });
  };
  add(1, 124);
  for (; begun < 16 && steps < 1000; ++steps) {
    take_step(scheduler, model, [&](int32_t decoding, int32_t rows) {
      const bool held_up = decoding > 0 && rows > 0 && steps < 10;
      return machine.step(decoding, rows) + (held_up ? 0.005 : 0);
    });
    for (RequestId id = 2; steps == 0 && id <= 16; ++id) add(id, 12);
  }
  EXPECT_EQ(begun, 16);
  EXPECT_LE(steps, 30) << "of 180 rows of prompts";
}

// Those whose drafts made steps long are gone.
TEST(PrefillBudget, DraftsOfOthersAreNotCountedWhenTheyAreGone) {
  const Machine machine{.empty = 0.002, .decode = 0.0005, .row = 0.0005};
  const SchedulerLimits limits{.context = 1000,
                               .pages = 4000,
                               .page_size = PageSize(16),
                               .running = 16,
                               .prefill_chunk = 512,
                               .mixed_chunk = 512,
                               .prefix_cache = false,
                               .drafts = 7};
  Scheduler scheduler(limits, sure_and_wrong());
  testing::HashModel model(limits);
  const auto step = [&] {
    const Batch batch =
        take_step(scheduler, model, [&](int32_t decoding, int32_t rows) { return machine.step(decoding, rows); });
    return machine.stretch(batch.rows() - batch.prompt_rows(), batch.prompt_rows());
  };
  const auto add = [&](RequestId id, int32_t length, int32_t answer, bool speculative) {
    scheduler.add(id, {.prompt = std::vector<int32_t>(length, 1), .max_new_tokens = answer, .speculative = speculative},
                  [](const Output&) {});
  };
  for (RequestId id = 1; id <= 7; ++id) add(id, 5, 900, true);
  for (RequestId id = 8; id <= 11; ++id) add(id, 900, 1, true);  // prompts, so that rows have a price
  for (int i = 0; i < 60; ++i) step();
  add(12, 5, 900, false);
  for (int i = 0; i < 4; ++i) step();
  for (RequestId id = 1; id <= 11; ++id) scheduler.cancel(id);
  add(13, 900, 1, false);
  EXPECT_LE(step(), 2.1) << "of the one that is left";
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
