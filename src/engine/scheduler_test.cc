#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "engine/testing.h"

namespace quire::engine {
namespace {

using testing::Expected;
using testing::expected_of;
using testing::HashModel;
using Tokens = std::vector<int32_t>;

SchedulerLimits limits_of(int32_t pages, int32_t page_size = 16) {
  return {.context = 400,
          .pages = pages,
          .page_size = PageSize(page_size),
          .running = 8,
          .prefill_chunk = 64,
          .mixed_chunk = 16,
          .prefix_cache = true};
}

Tokens text(int32_t length, int32_t first = 0) {
  Tokens tokens(length);
  for (int32_t i = 0; i < length; ++i) tokens[i] = (first + 7 * i) % testing::kVocabulary;
  return tokens;
}

// One that knows that rows cost next to nothing: a step has as many as the limits let it have.
PrefillBudget generous(int32_t most) {
  PrefillBudget budget(most);
  for (const int32_t rows : {0, 64}) budget.measured(1, rows, std::chrono::seconds(1));
  return budget;
}

// One to which every draft pays that may come.
DraftBudget free_rows(const SchedulerLimits& limits) { return DraftBudget(limits.drawn_rows(), 0, 0); }

// A scheduler, the model that it does not know, and what its listeners heard.
class World {
 public:
  // Where the limits have drafts: how often one is right, and how often there are some.
  explicit World(const SchedulerLimits& limits, int depth = 0, double right = 1, double speaks = 1)
      : limits_(limits),
        depth_(depth),
        right_(right),
        speaks_(speaks),
        scheduler_(limits, drafters(), generous(limits.mixed_chunk), free_rows(limits)),
        model_(limits),
        drafts_(*this) {
    if (limits.drafts_at_once) scheduler_.set_draft_model(drafts_);
  }

  RequestId add(Request request) {
    check_fits(request.prompt, limits_);
    const RequestId id = ++last_id_;
    requests_.emplace(id, request);
    if (limits_.drafts_at_once) answers_[id] = expected_of(request, limits_).tokens;
    scheduler_.add(id, std::move(request), [this](const Output& output) { hear(output); });
    return id;
  }
  RequestId add(Tokens prompt, int32_t max_new_tokens, int32_t priority = 0) {
    return add({.prompt = std::move(prompt), .max_new_tokens = max_new_tokens, .priority = priority});
  }
  // Plans and launches one step, and settles those that the device has answered; the batch is described as it was
  // planned, by request: {id, tokens}.
  using Planned = std::vector<std::pair<RequestId, int32_t>>;
  Planned step() {
    const Batch batch = plan();
    Planned shares;
    for (const Share& share : batch.shares) shares.emplace_back(share.id, share.count);
    launch(batch);
    settle_answered(batch.empty());
    return shares;
  }
  Batch plan() {
    Batch batch = scheduler_.plan();
    look_at_pages();
    return batch;
  }
  void launch(const Batch& batch) {
    if (batch.empty()) return;
    scheduler_.advance(batch);
    model_.launch(batch, scheduler_.table());
    in_flight_.push_back(batch);
    if (batch.draws_by_history()) prepare_draws(in_flight_.back());
    model_.draw(in_flight_.back());
    drafts_.follow(in_flight_.back());
  }
  // Nothing is launched beside them: then the oldest, whose answer is awaited.
  void settle_answered(bool nothing_launched) {
    if (nothing_launched && !in_flight_.empty()) settle_oldest();
    while (std::ssize(in_flight_) > depth_) settle_oldest();
  }
  void settle_oldest(const std::function<void(const Batch&, StepResults&)>& change = {}) {
    const Batch batch = pop_oldest();
    StepResults results = model_.answer();
    if (change) change(batch, results);
    scheduler_.settle(batch, results);
    look();
  }
  void fail_oldest(const std::string& reason) {
    const Batch batch = pop_oldest();
    model_.fail();
    scheduler_.fail(batch, reason);
    look();
  }
  // One step whose results are changed before they are settled.
  void step_with(const std::function<void(const Batch&, StepResults&)>& change) {
    launch(plan());
    settle_oldest(change);
  }
  void cancel(RequestId id) {
    scheduler_.cancel(id);
    look();
  }
  const std::deque<Batch>& in_flight() const { return in_flight_; }
  // The next step, in which the request's mask is late: until somebody computes it.
  Planned step_late(RequestId id) {
    late_ = [id](const Share& share) { return share.id == id; };
    Planned planned = step();
    late_ = nullptr;
    return planned;
  }
  void compute_mask(RequestId id) {
    const std::shared_ptr<AheadMask>& mask = late_masks_.at(id);
    threads_.begin(mask);
    threads_.wait([&] { return mask->ready(); }, std::chrono::seconds(30));
  }
  void set_late(std::function<bool(const Share&)> late) { late_ = std::move(late); }
  const std::map<RequestId, std::shared_ptr<AheadMask>>& late_masks() const { return late_masks_; }
  int drain(int most = 10000) {
    int steps = 0;
    while (busy() && steps < most && !::testing::Test::HasFailure()) {
      step();
      ++steps;
    }
    EXPECT_FALSE(busy());
    return steps;
  }
  bool busy() const { return scheduler_.running() + scheduler_.waiting() > 0 || !in_flight_.empty(); }

  void expect_right(RequestId id) const {
    SCOPED_TRACE(cat("request ", id));
    const Expected expected = expected_of(requests_.at(id), limits_);
    EXPECT_EQ(heard(id).tokens, expected.tokens);
    EXPECT_EQ(heard(id).prompt_logprobs, expected.prompt_logprobs);
    EXPECT_EQ(heard(id).embedding, expected.embedding);
    EXPECT_STREQ(to_string(heard(id).finish), to_string(expected.finish));
  }
  void expect_all_right() const {
    for (const auto& [id, request] : requests_) expect_right(id);
  }

  struct Heard {
    Tokens tokens;
    std::vector<std::pair<int32_t, float>> prompt_logprobs;
    std::vector<float> embedding;
    Finish finish = Finish::none;
    int32_t cached = 0;
    int events = 0;
    Speculated speculated;
    std::string error;
  };
  const Heard& heard(RequestId id) const {
    static const Heard nothing;
    const auto found = heard_.find(id);
    return found == heard_.end() ? nothing : found->second;
  }
  const std::map<RequestId, Request>& requests() const { return requests_; }
  Scheduler& scheduler() { return scheduler_; }
  HashModel& model() { return model_; }
  int32_t least_place = 0;  // of trees of drafts, where the limits have them
  bool strays = true;
  int64_t passing() const { return drafts_.passing; }

 private:
  // One that makes its drafts behind each step, where the limits have it: now and then surer than a request's own.
  class DraftsAtOnce final : public DraftModel {
   public:
    explicit DraftsAtOnce(World& world) : world_(world) {}
    void follow(const Batch& batch) {
      const SchedulerLimits& limits = world_.limits_;
      for (const Share& share : batch.shares) {
        newest_[share.row.value] = {share.id, share.passes};
        if (!share.passes) continue;
        ++passing;
        const kv::RequestTable& table = world_.scheduler_.table();
        const int32_t end = share.end() + 1 + limits.passes_at_once();
        EXPECT_TRUE(share.followed && share.draws);
        EXPECT_LE(end, limits.context);
        EXPECT_GE(std::ssize(table.pages(share.row)) * limits.page_size.tokens(), end);
        for (int32_t at = share.end(); at < end; ++at)
          EXPECT_EQ(world_.scheduler_.pool().references(page_at(table, share.row, at)), 1) << "somebody else's page";
      }
    }
    bool has_slots(std::span<const PageId>) const override { return true; }
    void catch_up(std::span<const RequestRow>) override {}
    DraftToken first(RequestRow row) const override { return draft(row, 0); }
    int32_t draft(std::span<const DraftsWanted> wanted) override {
      int32_t passes = 0;
      for (const DraftsWanted& each : wanted) {
        const int32_t made = newest_.at(each.row.value).passes;
        passes = std::max(passes, made);
        for (int32_t i = 0; i < std::min(each.most, made + 1); ++i) each.drafts->push_back(draft(each.row, i));
      }
      return passes;
    }
    int64_t passing = 0;

   private:
    struct Newest {
      RequestId id;
      int32_t passes;
    };
    PageId page_at(const kv::RequestTable& table, RequestRow row, int32_t at) const {
      return table.pages(row)[at / world_.limits_.page_size.tokens()];
    }
    DraftToken draft(RequestRow row, int32_t i) const {
      const RequestId id = newest_.at(row.value).id;
      const Tokens& answer = world_.answers_.at(id);
      const size_t at = world_.heard(id).tokens.size() + i;
      const bool right = (at * 7 + id) % 4 < 4 * world_.right_ && at < answer.size();
      return {.token = right ? answer[at] : 0, .hit = at % 3 == 0 ? 0.999f : 0.4f};
    }
    World& world_;
    std::map<int32_t, Newest> newest_;  // by row
  };

  MakeDrafter drafters() {
    return [this](const Request& request) {
      Tokens whole = request.prompt;
      const Tokens answer = expected_of(request, limits_).tokens;
      whole.insert(whole.end(), answer.begin(), answer.end());
      return drafter(std::move(whole), static_cast<uint32_t>(last_id_));
    };
  }
  std::unique_ptr<Drafter> drafter(Tokens whole, uint32_t seed) const {
    if (limits_.topk == 1) return std::make_unique<testing::KnowingDrafter>(std::move(whole), right_, seed, speaks_);
    return std::make_unique<testing::KnowingTreeDrafter>(
        std::move(whole), right_, seed, testing::KnowingTreeDrafter::Trees{limits_.topk, least_place, strays});
  }
  // As the engine does.
  void prepare_draws(Batch& batch) {
    while (in_flight_.size() > 1) settle_oldest();
    scheduler_.fill_in(batch);
    for (Share& share : batch.shares) {
      if (!share.by_history || share.sits_out) continue;
      if (share.history.count > 0) expect_history(batch, share);
      if (!share.mask || !late_ || !late_(share)) continue;
      late_masks_[share.id] = share.mask;
      scheduler_.sit_out(share);
    }
    scheduler_.audit();
  }
  void expect_history(const Batch& batch, const Share& share) {
    Tokens text = requests_.at(share.id).prompt;
    text.insert(text.end(), heard(share.id).tokens.begin(), heard(share.id).tokens.end());
    ASSERT_EQ(std::ssize(text), share.text_end());
    EXPECT_TRUE(std::equal(text.begin(), text.end(), batch.history.begin() + share.history.begin));
  }
  Batch pop_oldest() {
    Batch batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    return batch;
  }
  // After whatever may have freed pages.
  void look_at_pages() {
    model_.overwrite_free_pages(scheduler_.pool());
    EXPECT_EQ(model_.overwritten_reads(), 0) << "a step read a page that had returned to the pool";
  }
  void look() {
    look_at_pages();
    scheduler_.audit();
  }
  void hear(const Output& output) {
    Heard& heard = heard_[output.id];
    EXPECT_EQ(heard.finish, Finish::none) << "request " << output.id << " was told more after its end";
    if (output.token >= 0) heard.tokens.push_back(output.token);
    EXPECT_EQ(output.generated, std::ssize(heard.tokens));
    EXPECT_EQ(output.prompt_tokens, std::ssize(requests_.at(output.id).prompt));
    EXPECT_LT(output.cached_tokens, output.prompt_tokens);
    EXPECT_GE(output.queued_seconds, 0);
    EXPECT_TRUE(heard.events++ == 0 || output.prompt_logprobs.empty()) << "with the first event";
    for (const TokenLogprob& token : output.prompt_logprobs)
      heard.prompt_logprobs.emplace_back(token.token, token.logprob);
    heard.embedding = output.embedding;
    heard.finish = output.finish;
    heard.cached = output.cached_tokens;
    heard.speculated = output.speculated;
    heard.error = output.error;
  }

  SchedulerLimits limits_;
  int depth_;  // how many steps the device answers late
  double right_, speaks_;
  std::map<RequestId, Request> requests_;
  std::map<RequestId, Heard> heard_;
  std::map<RequestId, Tokens> answers_;  // for the draft model
  RequestId last_id_ = 0;
  std::deque<Batch> in_flight_;
  std::function<bool(const Share&)> late_;  // whose masks are; null: nobody's
  std::map<RequestId, std::shared_ptr<AheadMask>> late_masks_;
  MaskThreads threads_;
  Scheduler scheduler_;
  HashModel model_;
  DraftsAtOnce drafts_;
};

using Planned = World::Planned;

TEST(SchedulerLimits, RowsOfDraftsAreFewHoweverManyTheOptionsAllow) {
  SchedulerLimits limits{.context = 8,
                         .pages = 8,
                         .page_size = PageSize(16),
                         .running = 64,
                         .prefill_chunk = 4,
                         .mixed_chunk = 4,
                         .prefix_cache = true,
                         .drafts = 1 << 25};
  EXPECT_EQ(limits.draft_rows(), SchedulerLimits::kMostDraftRows);
  EXPECT_EQ(limits.deepest_draft(), SchedulerLimits::kMostDraftRows);
}

TEST(Speculated, CountsPastThirtyTwoBits) {
  Speculated all;
  all.by_correct[0] = std::numeric_limits<int32_t>::max();
  all.add(1, 0);
  EXPECT_EQ(all.by_correct[0], int64_t{1} << 31);
}

TEST(Scheduler, ComputesThePromptInChunksAndThenTokenByToken) {
  World world(limits_of(20));
  const RequestId id = world.add(text(100), 3);
  EXPECT_EQ(world.step(), (Planned{{id, 64}}));
  EXPECT_TRUE(world.heard(id).tokens.empty());
  EXPECT_EQ(world.step(), (Planned{{id, 36}}));
  EXPECT_EQ(world.heard(id).tokens.size(), 1u);
  EXPECT_EQ(world.step(), (Planned{{id, 1}}));
  EXPECT_EQ(world.step(), (Planned{{id, 1}}));
  EXPECT_FALSE(world.busy());
  world.expect_right(id);
  EXPECT_TRUE(world.step().empty());
}

TEST(Scheduler, DecodersGoFirstAndBoundTheChunksOfPrompts) {
  World world(limits_of(40));
  const RequestId a = world.add(text(20), 50);
  const RequestId b = world.add(text(20, 1), 50);
  EXPECT_EQ(world.step(), (Planned{{a, 20}, {b, 20}}));
  const RequestId c = world.add(text(40, 2), 1);
  EXPECT_EQ(world.step(), (Planned{{a, 1}, {b, 1}, {c, 16}}));
  EXPECT_EQ(world.step(), (Planned{{a, 1}, {b, 1}, {c, 16}}));
  EXPECT_EQ(world.step(), (Planned{{a, 1}, {b, 1}, {c, 8}}));
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, SeveralPromptsShareAStep) {
  World world(limits_of(40));
  const RequestId a = world.add(text(30), 1);
  const RequestId b = world.add(text(30, 1), 1);
  const RequestId c = world.add(text(30, 2), 1);
  EXPECT_EQ(world.step(), (Planned{{a, 30}, {b, 30}, {c, 4}}));
  EXPECT_EQ(world.step(), (Planned{{c, 26}}));
  world.expect_all_right();
}

TEST(Scheduler, HigherPrioritiesGoFirst) {
  World world(limits_of(60));
  const RequestId low = world.add(text(200), 1, -1);
  EXPECT_EQ(world.step(), (Planned{{low, 64}}));
  const RequestId middle = world.add(text(70, 1), 1, 0);
  const RequestId high = world.add(text(70, 2), 1, 5);
  EXPECT_EQ(world.step(), (Planned{{high, 64}}));
  EXPECT_EQ(world.step(), (Planned{{high, 6}, {middle, 58}}));
  EXPECT_EQ(world.step(), (Planned{{middle, 12}, {low, 52}}));
  world.drain();
  world.expect_all_right();
}

// One after the other, and there is always one more of the level above.
TEST(Scheduler, WhoeverWaitsLongEnoughGoesBeforeHigherPriorities) {
  SchedulerLimits limits = limits_of(20);
  limits.running = 2;
  World world(limits);
  const RequestId low = world.add(text(20), 4);
  int steps = 0, above = 0;
  while (world.heard(low).finish == Finish::none && steps < 3 * kStepsOfALevel) {
    while (world.scheduler().waiting() < 3) world.add(text(20, 1 + ++above % 20), 8, 1);
    world.step();
    ++steps;
  }
  EXPECT_EQ(world.heard(low).finish, Finish::length) << "starves beside " << above << " others";
  EXPECT_GT(steps, kStepsOfALevel / 2) << "a level is worth something";
  EXPECT_LT(steps, kStepsOfALevel + 100);
  world.drain();
  world.expect_all_right();
}

// Those that run take pages from it again and again, and still its turn comes.
TEST(Scheduler, ARetractedRequestIsNotRetractedForEver) {
  World world(limits_of(16));
  const RequestId low = world.add(text(100), 100);
  int steps = 0, above = 0;
  while (world.heard(low).finish == Finish::none && steps < 8 * kStepsOfALevel) {
    while (world.scheduler().waiting() < 2) world.add(text(60, 1 + ++above % 20), 90, 3);
    world.step();
    ++steps;
  }
  EXPECT_EQ(world.heard(low).finish, Finish::length) << "starves beside " << above << " others";
  EXPECT_GT(steps, 2 * kStepsOfALevel);
}

TEST(Scheduler, UnderLoadHigherPrioritiesWaitMuchLess) {
  SchedulerLimits limits = limits_of(40);
  limits.running = 2;
  World world(limits);
  std::map<RequestId, int> came, waited;
  for (int step = 0; step < 1500; ++step) {
    if (step % 2 == 0) came[world.add(text(20, step % 40), 6, step % 8 == 0 ? 2 : 0)] = step;
    for (const auto& [id, count] : world.step()) waited.try_emplace(id, step - came.at(id));
  }
  double high = 0, low = 0, highs = 0, lows = 0;
  for (const auto& [id, steps] : waited) {
    (world.requests().at(id).priority > 0 ? high : low) += steps;
    (world.requests().at(id).priority > 0 ? highs : lows) += 1;
  }
  ASSERT_GT(highs, 100);
  ASSERT_GT(lows, 100);
  EXPECT_LT(high / highs, 10);
  EXPECT_GT(low / lows, 100) << "there is more to do than can be done";
}

class Unused final : public TokenMask {
  const uint32_t* next() override { return nullptr; }
  void accept(int32_t) override {}
};

// The row that could not draw is computed again; a prompt's other rows are not.
TEST(Scheduler, LateRowsAreComputedAgainWhenTheMaskIsReady) {
  World world(limits_of(40));
  const RequestId id = world.add({.prompt = text(40), .max_new_tokens = 5, .mask = std::make_shared<Unused>()});
  const RequestId other = world.add(text(20, 1), 20);
  world.step_late(id);
  EXPECT_EQ(world.heard(id).events, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(world.step(), (Planned{{other, 1}})) << "it sits out";
  EXPECT_FALSE(world.scheduler().all_await_masks());
  world.compute_mask(id);
  EXPECT_EQ(world.step(), (Planned{{other, 1}, {id, 1}}));
  EXPECT_EQ(world.heard(id).tokens.size(), 1u);
  world.step_late(id);
  EXPECT_EQ(world.heard(id).tokens.size(), 1u);
  EXPECT_EQ(world.step(), (Planned{{id, 1}, {other, 1}}));
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, AStepMayBeEmptyWhileAllAwaitTheirMasks) {
  World world(limits_of(40));
  const RequestId id = world.add({.prompt = text(40), .max_new_tokens = 5, .mask = std::make_shared<Unused>()});
  world.step_late(id);
  EXPECT_TRUE(world.scheduler().plan().empty());
  EXPECT_TRUE(world.scheduler().all_await_masks());
  world.scheduler().cancel(id);
  EXPECT_TRUE(world.scheduler().plan().empty());
  EXPECT_FALSE(world.busy());
}

// --- requests that come together

SchedulerLimits patient_limits() {
  SchedulerLimits limits = limits_of(100);
  limits.first_wait = limits.prefill_chunk;
  return limits;
}

TEST(Scheduler, PromptsAreNotCutBesideFirstTokensUpToACredit) {
  World world(patient_limits());
  const RequestId first = world.add(text(20), 50);
  world.step();
  const RequestId second = world.add(text(40, 1), 50), third = world.add(text(60, 2), 50);
  EXPECT_EQ(world.step(), (Planned{{first, 1}, {second, 40}, {third, 24}})) << "64 rows, the credit of the first";
  EXPECT_EQ(world.step(), (Planned{{first, 1}, {second, 1}, {third, 16}})) << "which has none left";
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, PromptsAreCutBesideWhoHasMoreThanFirstTokens) {
  for (const int32_t tokens : {SchedulerLimits::kFirstTokens, SchedulerLimits::kFirstTokens + 1}) {
    World world(patient_limits());
    const RequestId first = world.add(text(20), 50);
    for (int32_t i = 0; i < tokens; ++i) world.step();
    const RequestId second = world.add(text(40, 1), 50);
    EXPECT_EQ(world.step(), (Planned{{first, 1}, {second, tokens == SchedulerLimits::kFirstTokens ? 40 : 16}}));
  }
}

TEST(Scheduler, OneOldRequestIsEnoughForPromptsToBeCut) {
  World world(patient_limits());
  const RequestId old = world.add(text(20), 50);
  for (int32_t i = 0; i <= SchedulerLimits::kFirstTokens; ++i) world.step();
  const RequestId young = world.add(text(10, 1), 50);
  world.step();
  const RequestId prompt = world.add(text(40, 2), 50);
  EXPECT_EQ(world.step(), (Planned{{old, 1}, {young, 1}, {prompt, 16}}));
}

// The masked one has grown past what was foreseen when the prompt behind it was admitted.
TEST(Scheduler, APromptGivesItsPagesUpWhereAllBeforeItAwaitTheirMasks) {
  SchedulerLimits limits = limits_of(16);
  limits.mixed_chunk = 1;
  World world(limits);
  const RequestId masked = world.add({.prompt = text(20), .max_new_tokens = 200, .mask = std::make_shared<Unused>()});
  world.step();
  const RequestId prompt = world.add(text(150, 1), 5);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(world.step(), (Planned{{masked, 1}, {prompt, 1}}));
  world.step_late(masked);
  for (int i = 0; i < 5; ++i) world.step();
  EXPECT_EQ(world.scheduler().retracted(), 1);
  EXPECT_TRUE(world.scheduler().all_await_masks());
  world.compute_mask(masked);
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, NobodyWaitsForAPrefixWhoseOwnerAwaitsItsMask) {
  World world(limits_of(40));
  const RequestId masked = world.add({.prompt = text(64), .max_new_tokens = 5, .mask = std::make_shared<Unused>()});
  const RequestId other = world.add(text(80), 5);  // begins with the same 64 tokens
  world.step_late(masked);
  while (world.heard(other).finish == Finish::none) ASSERT_FALSE(world.step().empty());
  world.expect_right(other);
}

TEST(Scheduler, TakesCachedPrefixesButComputesTheLastToken) {
  World world(limits_of(40));
  const RequestId first = world.add(text(64), 1);
  world.drain();
  const RequestId same = world.add(text(64), 2);
  EXPECT_EQ(world.step(), (Planned{{same, 16}})) << "the page of the last token is computed again";
  const RequestId longer = world.add(text(70), 2);
  EXPECT_EQ(world.step(), (Planned{{same, 1}, {longer, 6}}));
  world.drain();
  EXPECT_EQ(world.heard(first).cached, 0);
  EXPECT_EQ(world.heard(same).cached, 48);
  EXPECT_EQ(world.heard(longer).cached, 64);
  EXPECT_EQ(world.scheduler().counters().prompt_tokens, 64 + 64 + 70);
  EXPECT_EQ(world.scheduler().counters().cached_prompt_tokens, 48 + 64);
  world.expect_all_right();
}

TEST(Scheduler, CachesWhatWasGenerated) {
  World world(limits_of(40));
  const RequestId first = world.add(text(20), 29);
  world.drain();
  Tokens whole = text(20);
  const Tokens& generated = world.heard(first).tokens;
  whole.insert(whole.end(), generated.begin(), generated.end());
  const RequestId second = world.add(whole, 1);
  world.drain();
  EXPECT_EQ(world.heard(second).cached, 48);
  world.expect_all_right();
}

TEST(Scheduler, SharesWhatIsGeneratedWhileItsRequestRuns) {
  World world(limits_of(40));
  const RequestId first = world.add(text(20), 100);
  while (world.heard(first).tokens.size() < 60) world.step();
  Tokens whole = text(20);
  const Tokens& generated = world.heard(first).tokens;
  whole.insert(whole.end(), generated.begin(), generated.begin() + 60);
  const RequestId second = world.add(whole, 1);
  world.step();
  EXPECT_EQ(world.heard(second).cached, 64);
  EXPECT_EQ(world.heard(first).finish, Finish::none);
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, SaltsDoNotShare) {
  World world(limits_of(40));
  world.add(text(64), 1);
  world.drain();
  const RequestId other = world.add({.prompt = text(64), .max_new_tokens = 1, .salt = "b"});
  world.drain();
  EXPECT_EQ(world.heard(other).cached, 0);
  world.expect_all_right();
}

TEST(Scheduler, WithoutThePrefixCacheNothingIsKept) {
  SchedulerLimits limits = limits_of(40);
  limits.prefix_cache = false;
  World world(limits);
  world.add(text(64), 1);
  world.drain();
  EXPECT_EQ(world.scheduler().cached_pages(), 0);
  const RequestId again = world.add(text(64), 1);
  world.drain();
  EXPECT_EQ(world.heard(again).cached, 0);
  EXPECT_EQ(world.scheduler().pool().used_pages(), 0);
}

TEST(Scheduler, AWaitingRequestSharesThePagesOfOneThatStillRuns) {
  World world(limits_of(40));
  const RequestId first = world.add(text(200), 1);
  world.step();
  const RequestId second = world.add(text(65), 1);
  EXPECT_EQ(world.step(), (Planned{{first, 64}})) << "the budget is the first one's";
  EXPECT_EQ(world.step(), (Planned{{first, 64}}));
  EXPECT_EQ(world.step(), (Planned{{first, 8}, {second, 1}}));
  EXPECT_EQ(world.heard(second).cached, 64);
  world.expect_all_right();
}

TEST(Scheduler, WaitsForAPrefixThatIsBeingComputed) {
  World world(limits_of(40));
  const RequestId first = world.add(text(40), 2);
  const RequestId second = world.add(text(36), 1);
  const RequestId other = world.add(text(20, 3), 1);
  EXPECT_EQ(world.step(), (Planned{{first, 40}, {other, 20}})) << "the second would compute the same pages";
  EXPECT_EQ(world.step(), (Planned{{first, 1}, {second, 4}}));
  EXPECT_EQ(world.heard(second).cached, 32);
  world.expect_all_right();
}

TEST(Scheduler, DoesNotWaitForLessThanAPageNorForALowerPriority) {
  World world(limits_of(40));
  const RequestId a = world.add(text(15), 1);
  const RequestId b = world.add(text(15), 1);
  EXPECT_EQ(world.step(), (Planned{{a, 15}, {b, 15}}));
  const RequestId low = world.add(text(200), 1, -1);
  world.step();
  const RequestId high = world.add(text(150), 1);
  EXPECT_EQ(world.step(), (Planned{{high, 64}}));
  world.drain();
  EXPECT_EQ(world.heard(high).cached, 64);
  EXPECT_EQ(world.heard(low).cached, 0);
  world.expect_all_right();
}

TEST(Scheduler, NobodyWaitsForAPrefixWhoseOwnerIsGone) {
  World world(limits_of(40));
  const RequestId first = world.add(text(200), 1);
  const RequestId second = world.add(text(100), 1);
  EXPECT_EQ(world.step(), (Planned{{first, 64}}));
  world.scheduler().cancel(first);
  EXPECT_EQ(world.step(), (Planned{{second, 36}})) << "what was computed is kept";
  EXPECT_EQ(world.heard(first).finish, Finish::cancelled);
  world.expect_right(second);
}

TEST(Scheduler, TwoRequestsWithTheSameTextEndUpOnTheSamePages) {
  const SchedulerLimits limits = limits_of(12);
  World world(limits);
  const RequestId first = world.add(text(15), 80);
  const RequestId second = world.add(text(15), 80);
  world.drain();
  world.expect_right(first);
  world.expect_right(second);
  EXPECT_EQ(world.scheduler().cached_pages(), 5) << "94 computed tokens, once";
  EXPECT_EQ(limits.pages - world.scheduler().pool().free_pages(), 5);
}

TEST(Scheduler, RetractsTheYoungestOfTheLowestPriorityAndItsTokensStay) {
  World world(limits_of(18));
  const RequestId old = world.add(text(30), 150);
  const RequestId low = world.add(text(30, 1), 150, -1);
  const RequestId young = world.add(text(30, 2), 150);
  const auto step_until_retractions = [&](int64_t count) {
    for (int steps = 0; world.scheduler().counters().retractions < count && steps < 300; ++steps) world.step();
    EXPECT_EQ(world.scheduler().counters().retractions, count);
  };
  step_until_retractions(1);
  EXPECT_EQ(world.scheduler().running(), 2);
  EXPECT_EQ(world.scheduler().retracted(), 1);
  const auto received = [&](RequestId id) { return world.heard(id).tokens.size(); };
  const size_t low_before = received(low), young_before = received(young);
  world.step();
  EXPECT_EQ(received(low), low_before) << "the lowest priority was retracted, though it is not the youngest";
  EXPECT_EQ(received(young), young_before + 1);
  step_until_retractions(2);
  const size_t old_before = received(old);
  world.step();
  EXPECT_EQ(received(old), old_before + 1);
  EXPECT_EQ(world.scheduler().running(), 1);
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, ARetractedRequestComesBackAheadOfItsEquals) {
  World world(limits_of(16));
  const RequestId first = world.add(text(60), 150);
  Tokens longer = text(60);
  longer.insert(longer.end(), 100, 1);
  const RequestId waits = world.add(longer, 5);
  const RequestId young = world.add(text(4, 1), 100);
  EXPECT_EQ(world.step(), (Planned{{first, 60}, {young, 4}})) << "the second awaits its prefix, and then finds no room";
  while (world.heard(first).finish == Finish::none) world.step();
  EXPECT_EQ(world.scheduler().counters().retractions, 1);
  EXPECT_LT(world.heard(young).tokens.size(), 100u);
  EXPECT_TRUE(world.heard(waits).tokens.empty());
  EXPECT_EQ(world.step().front().first, young);
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, AloneARequestEndsWithThePool) {
  SchedulerLimits limits = limits_of(3);
  World world(limits);
  const RequestId id = world.add(text(20), -1);
  world.drain();
  EXPECT_EQ(world.heard(id).tokens.size(), 29u) << "48 tokens are in pages, and one more was drawn from them";
  EXPECT_EQ(world.heard(id).finish, Finish::length);
  world.expect_all_right();
  world.add(text(47, 3), 5);
  world.drain();
  world.expect_all_right();
}

TEST(Scheduler, EndsWithTheContext) {
  SchedulerLimits limits = limits_of(20);
  limits.context = 30;
  World world(limits);
  const RequestId id = world.add(text(20), 1000);
  world.drain();
  EXPECT_EQ(world.heard(id).tokens.size(), 10u);
  world.expect_all_right();
}

TEST(Scheduler, StopsAtStopIdsAndReportsThem) {
  World world(limits_of(20));
  Request request{.prompt = text(20), .max_new_tokens = 100};
  const Tokens all = expected_of(request, limits_of(20)).tokens;
  request.stop_ids = {all[7], all[9]};
  const RequestId id = world.add(request);
  world.drain();
  EXPECT_EQ(world.heard(id).finish, Finish::stop);
  EXPECT_EQ(world.heard(id).tokens.back(),
            *std::find_first_of(all.begin(), all.end(), request.stop_ids.begin(), request.stop_ids.end()));
  world.expect_all_right();
}

TEST(Scheduler, NothingToGenerateOnlyFillsTheCache) {
  World world(limits_of(20));
  const RequestId id = world.add(text(64), 0);
  world.step_with([](const Batch& batch, StepResults&) { EXPECT_EQ(batch.wanted_rows(), 0); });
  EXPECT_EQ(world.heard(id).finish, Finish::length);
  EXPECT_TRUE(world.heard(id).tokens.empty());
  EXPECT_EQ(world.scheduler().cached_pages(), 4);
  EXPECT_FALSE(world.busy());
}

// --- results of prompts

TEST(Scheduler, ScoresThePromptInChunksThatTheStepCanKeep) {
  SchedulerLimits limits = limits_of(40);
  limits.prefill_chunk = 100;
  World world(limits);
  const RequestId id = world.add({.prompt = text(200), .max_new_tokens = 2, .prompt_logprobs_from = 0});
  const RequestId plain = world.add(text(100, 1), 2);
  const RequestId late = world.add({.prompt = text(180, 2), .max_new_tokens = 2, .prompt_logprobs_from = 170});
  EXPECT_EQ(world.step(), (Planned{{id, 64}, {plain, 36}}));
  EXPECT_EQ(world.step(), (Planned{{id, 64}, {plain, 36}}));
  EXPECT_EQ(world.step(), (Planned{{id, 64}, {plain, 28}, {late, 8}})) << "its first rows need not be kept";
  EXPECT_TRUE(world.heard(id).prompt_logprobs.empty());
  EXPECT_EQ(world.step(), (Planned{{plain, 1}, {id, 8}, {late, 8}}));
  EXPECT_EQ(world.heard(id).prompt_logprobs.size(), 200u);
  world.drain();
  EXPECT_EQ(world.heard(late).prompt_logprobs.size(), 10u);
  world.expect_all_right();
}

TEST(Scheduler, ThoseWhoseRowsAreKeptTakeTurnsAndOthersPassThem) {
  World world(limits_of(60));
  const RequestId first = world.add({.prompt = text(70), .max_new_tokens = 0, .pooling = Pooling::mean});
  const RequestId second = world.add({.prompt = text(30, 1), .max_new_tokens = 0, .pooling = Pooling::mean});
  EXPECT_EQ(world.step(), (Planned{{first, 64}}));
  EXPECT_EQ(world.step(), (Planned{{first, 6}, {second, 30}}));
  SchedulerLimits limits = limits_of(60);
  limits.prefill_chunk = 200;
  World wide(limits);
  const RequestId a = wide.add({.prompt = text(70), .max_new_tokens = 0, .pooling = Pooling::mean});
  const RequestId b = wide.add({.prompt = text(70, 1), .max_new_tokens = 0, .pooling = Pooling::mean});
  const RequestId c = wide.add(text(40, 2), 1);
  EXPECT_EQ(wide.step(), (Planned{{a, 64}, {c, 40}})) << "nothing is left to keep rows of the second";
  EXPECT_EQ(wide.step(), (Planned{{a, 6}, {b, 58}}));
  EXPECT_EQ(wide.step(), (Planned{{b, 12}}));
  world.expect_all_right();
  wide.expect_all_right();
}

TEST(Scheduler, CachedPrefixesEndWhereRowsAreWanted) {
  World world(limits_of(60));
  world.add(text(64), 1);
  world.drain();
  const auto cached = [&](Request request) {
    request.prompt = text(64);
    const RequestId id = world.add(std::move(request));
    world.drain();
    return world.heard(id).cached;
  };
  EXPECT_EQ(cached({.max_new_tokens = 1, .prompt_logprobs_from = 0}), 0);
  EXPECT_EQ(cached({.max_new_tokens = 1, .prompt_logprobs_from = 16}), 0) << "row 15 tells of token 16";
  EXPECT_EQ(cached({.max_new_tokens = 1, .prompt_logprobs_from = 17}), 16);
  EXPECT_EQ(cached({.max_new_tokens = 0, .prompt_logprobs_from = 63}), 48);
  EXPECT_EQ(cached({.max_new_tokens = 0, .prompt_logprobs_from = 64}), 48) << "none is wanted";
  EXPECT_EQ(cached({.max_new_tokens = 0, .pooling = Pooling::mean}), 0);
  EXPECT_EQ(cached({.max_new_tokens = 0, .pooling = Pooling::last}), 48);
  world.expect_all_right();
}

TEST(Scheduler, DoesNotWaitForAPrefixThatItMustCompute) {
  World world(limits_of(40));
  const RequestId first = world.add(text(40), 2);
  const RequestId second = world.add({.prompt = text(36), .max_new_tokens = 1, .prompt_logprobs_from = 1});
  EXPECT_EQ(world.step(), (Planned{{first, 40}, {second, 24}}));
  world.drain();
  world.expect_all_right();
}

// Their prompts are being computed when their pages are taken; what was kept of them stays.
TEST(Scheduler, RowsOfARetractedPromptAreKeptOnce) {
  for (const Pooling pooling : {Pooling::none, Pooling::mean, Pooling::last}) {
    SchedulerLimits limits = limits_of(16);
    limits.mixed_chunk = 1;
    World world(limits);
    const RequestId high = world.add(text(20), 200, 1);
    world.step();
    Request request{.prompt = text(150, 1), .max_new_tokens = 0, .pooling = pooling};
    if (pooling == Pooling::none) request.prompt_logprobs_from = 0;
    const RequestId low = world.add(request);
    while (world.heard(high).finish == Finish::none) world.step();
    EXPECT_EQ(world.scheduler().counters().retractions, 1);
    EXPECT_EQ(world.heard(low).events, 0);
    world.drain();
    world.expect_all_right();
  }
}

TEST(Scheduler, WhatARowCannotDoEndsItsOwnRequest) {
  World world(limits_of(40));
  const RequestId draws = world.add(text(20), 10);
  const RequestId scores = world.add({.prompt = text(20, 1), .max_new_tokens = 1, .prompt_logprobs_from = 0});
  const RequestId other = world.add(text(20, 2), 10);
  const auto step_with_errors = [&](const char* in_draw, const char* in_score) {
    world.step_with([&](const Batch&, StepResults& results) {
      if (in_draw) results.drawn[0].error = in_draw;
      if (in_score) results.scored[7].error = in_score;
    });
  };
  step_with_errors(nullptr, "this is no prompt");
  step_with_errors("no way to go on", nullptr);
  EXPECT_EQ(world.heard(scores).finish, Finish::failed);
  EXPECT_EQ(world.heard(scores).error, "this is no prompt");
  EXPECT_EQ(world.heard(draws).finish, Finish::failed);
  EXPECT_EQ(world.heard(draws).error, "no way to go on");
  EXPECT_EQ(world.heard(draws).tokens.size(), 1u);
  world.drain();
  world.expect_right(other);
}

TEST(Scheduler, CancelledInItsPromptARequestLeavesNothingButCachedPages) {
  World world(limits_of(20));
  const RequestId id = world.add({.prompt = text(200), .max_new_tokens = 1, .prompt_logprobs_from = 0});
  world.step();
  world.scheduler().cancel(id);
  EXPECT_EQ(world.heard(id).finish, Finish::cancelled);
  EXPECT_TRUE(world.heard(id).prompt_logprobs.empty());
  EXPECT_EQ(world.scheduler().pool().free_pages() + world.scheduler().evictable_pages(), 20);
  world.scheduler().audit();
}

TEST(Scheduler, CountsWhatStartsAndHowLongItWaited) {
  World world(limits_of(20));
  const auto now = Clock::now();
  std::map<RequestId, double> queued;
  const auto listener = [&](const Output& output) { queued[output.id] = output.queued_seconds; };
  world.scheduler().add(100, {.prompt = text(20), .max_new_tokens = 1}, listener, now - std::chrono::seconds(5));
  world.scheduler().add(101, {.prompt = text(20), .max_new_tokens = 1}, listener, now - std::chrono::seconds(7));
  world.scheduler().cancel(101);
  world.drain();
  EXPECT_EQ(world.scheduler().counters().started, 1);
  EXPECT_NEAR(queued[100], 5, 2);
  EXPECT_NEAR(queued[101], 7, 2) << "it never ran";
}

TEST(Scheduler, CancelsWhatWaitsAndWhatRuns) {
  SchedulerLimits limits = limits_of(20);
  limits.running = 1;
  World world(limits);
  const RequestId runs = world.add(text(20), 100);
  const RequestId waits = world.add(text(20, 1), 100);
  world.step();
  world.step();
  world.scheduler().cancel(waits);
  world.scheduler().cancel(runs);
  world.scheduler().cancel(runs);
  world.scheduler().cancel(77);
  EXPECT_FALSE(world.busy());
  EXPECT_EQ(world.heard(runs).finish, Finish::cancelled);
  EXPECT_EQ(world.heard(runs).tokens.size(), 2u);
  EXPECT_EQ(world.heard(waits).finish, Finish::cancelled);
  EXPECT_EQ(world.scheduler().counters().cancelled, 2);
  world.scheduler().audit();
}

TEST(Scheduler, GivingUpEndsOnlyWhatHasNotRun) {
  SchedulerLimits limits = limits_of(20);
  limits.running = 1;
  World world(limits);
  const RequestId runs = world.add(text(20), 10);
  const RequestId waits = world.add(text(20, 1), 10);
  world.step();
  for (const RequestId id : {runs, waits, RequestId{77}}) world.scheduler().give_up_waiting(id);
  EXPECT_EQ(world.heard(waits).finish, Finish::cancelled);
  world.drain();
  world.expect_right(runs);
}

TEST(Scheduler, AFailedStepEndsItsRequestsAndNoOthers) {
  SchedulerLimits limits = limits_of(20);
  limits.running = 1;
  World world(limits);
  const RequestId fails = world.add(text(20), 100);
  const RequestId waits = world.add(text(20, 1), 10);
  for (int i = 0; i < 30; ++i) world.step();
  world.launch(world.plan());
  world.fail_oldest("the weights melted");
  EXPECT_EQ(world.heard(fails).finish, Finish::failed);
  EXPECT_EQ(world.heard(fails).error, "the weights melted");
  EXPECT_EQ(world.scheduler().cached_pages(), 1) << "of the prompt; nobody should go on with what was generated";
  world.drain();
  world.expect_right(waits);
}

TEST(Scheduler, AListenerThatThrowsHarmsNobody) {
  SchedulerLimits limits = limits_of(20);
  World world(limits);
  world.scheduler().add(1000, {.prompt = text(20), .max_new_tokens = 3}, [](const Output& output) {
    if (output.token % 2) throw std::runtime_error("no");
    throw 7;
  });
  const RequestId other = world.add(text(20, 1), 5);
  world.drain();
  world.expect_right(other);
}

TEST(Scheduler, FlushDropsOnlyWhatNobodyUses) {
  World world(limits_of(40));
  world.add(text(64), 1);
  world.drain();
  const RequestId runs = world.add(text(33, 1), 40);
  world.step();
  EXPECT_EQ(world.scheduler().cached_pages(), 6);
  world.scheduler().flush_cache();
  EXPECT_EQ(world.scheduler().cached_pages(), 2);
  world.drain();
  world.expect_right(runs);
}

TEST(Scheduler, DoesNotAdmitWhatWouldSoonBeRetracted) {
  World world(limits_of(12));
  const RequestId first = world.add(text(100), 60);
  world.step();
  world.step();
  const RequestId second = world.add(text(30, 1), 20);
  EXPECT_GE(world.scheduler().pool().free_pages(), 4) << "enough for the second, if the first were not to grow";
  while (world.heard(first).finish == Finish::none) EXPECT_EQ(world.step().size(), 1u);
  EXPECT_EQ(world.scheduler().counters().retractions, 0);
  world.drain();
  world.expect_right(first);
  world.expect_right(second);
}

TEST(Scheduler, NobodyOvertakesARequestThatFindsNoRoom) {
  World world(limits_of(20));
  const RequestId first = world.add(text(150), 60);
  for (int i = 0; i < 3; ++i) world.step();
  const RequestId large = world.add(text(200, 1), 5);
  const RequestId small = world.add(text(10, 2), 5);
  while (world.heard(first).finish == Finish::none) EXPECT_EQ(world.step().size(), 1u);
  EXPECT_EQ(world.step().front().first, large);
  EXPECT_TRUE(world.heard(small).tokens.empty());
  world.drain();
  world.expect_all_right();
}

// The prompt goes first by its priority, and the one behind it has its share of the step already.
TEST(Scheduler, APromptTakesPagesFromADecoderThatRunsBehindIt) {
  SchedulerLimits limits = limits_of(16);
  limits.mixed_chunk = 1;
  World world(limits);
  const RequestId low = world.add(text(20), 200);
  world.step();
  const RequestId high = world.add(text(150, 1), 1, 1);
  while (world.scheduler().counters().retractions == 0 && world.busy()) EXPECT_GE(world.step().size(), 1u);
  EXPECT_EQ(world.scheduler().running(), 1);
  EXPECT_TRUE(world.heard(high).tokens.empty()) << "it is the prompt that lacked pages";
  world.drain();
  world.expect_all_right();
  EXPECT_EQ(world.heard(low).tokens.size(), 200u);
}

// Both compute the same pages, because the higher priority does not wait. If the lower one kept its own, the cache
// would hold the others for it, and it would run out of pages that an engine of its own would give it.
TEST(Scheduler, PagesOfTheSameTokensAreHeldOnce) {
  World world(limits_of(24));
  const RequestId low = world.add(text(200), -1);
  world.step();
  const RequestId high = world.add(text(150), 1, 1);
  world.drain();
  EXPECT_EQ(world.heard(high).cached, 64);
  world.expect_all_right();
  EXPECT_EQ(world.heard(low).tokens.size(), 24 * 16 + 1 - 200u);
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
  const SchedulerLimits limits = limits_of(3);
  check_fits(text(47), limits);
  expect_refused([&] { check_fits(text(48), limits); }, "48 tokens leaves no room for a new one in the pool of 48");
  expect_refused([&] { check_fits({}, limits); }, "the prompt is empty");
  expect_refused([] { check_fits(text(400), limits_of(100)); }, "in the context of 400");
  SchedulerLimits none = limits;
  none.mixed_chunk = 0;
  expect_refused([&] { Scheduler{none}; }, "chunks of 64 and 0");
}

TEST(Scheduler, NoticesLostPages) {
  EXPECT_NO_THROW(check_pages_are_back(10, 4, 6, 0));
  expect_refused([] { check_pages_are_back(10, 4, 5, 0); }, "of 10 pages 4 are free and 5 cached");
  expect_refused([] { check_pages_are_back(10, 4, 6, 1); }, "1 request rows are open");
}

// --- steps in flight

TEST(StepsInFlight, RowsOfTokensThatAreBeingDrawnAreLaunched) {
  for (const int depth : {1, 2}) {
    World world(limits_of(20), depth);
    const RequestId id = world.add(text(20), 100);
    EXPECT_EQ(world.step(), (Planned{{id, 20}}));
    for (int i = 1; i < 10; ++i) {
      const Batch batch = world.plan();
      ASSERT_EQ(batch.shares.size(), 1u);
      EXPECT_EQ(batch.shares[0].position, 19 + i);
      EXPECT_EQ(batch.token_ids, Tokens{kFutureToken});
      EXPECT_EQ(std::ssize(world.heard(id).tokens), std::max(0, i - depth)) << "heard so many steps late";
      world.launch(batch);
      world.settle_answered(false);
    }
    world.drain();
    world.expect_right(id);
  }
}

TEST(StepsInFlight, WhoIsSureToEndHasNoMoreRows) {
  World world(limits_of(20), 2);
  const RequestId id = world.add(text(20), 2);
  const RequestId nothing = world.add(text(20, 1), 0);
  EXPECT_EQ(world.step(), (Planned{{id, 20}, {nothing, 20}}));
  EXPECT_EQ(world.step(), (Planned{{id, 1}}));
  EXPECT_TRUE(world.step().empty());
  EXPECT_TRUE(world.step().empty());
  EXPECT_FALSE(world.busy());
  world.expect_all_right();
}

// Stopped or cancelled, it has rows in flight: their tokens are dropped, and pages and row come back after them.
TEST(StepsInFlight, PagesComeBackWhenTheLastStepThatReadsThemIsSettled) {
  for (const bool stops : {true, false}) {
    SchedulerLimits limits = limits_of(20);
    limits.running = 1;
    limits.prefix_cache = false;
    World world(limits, 2);
    Request request{.prompt = text(20), .max_new_tokens = 100};
    if (stops) request.stop_ids = {expected_of(request, limits).tokens[0]};
    const RequestId id = world.add(request), next = world.add(text(20, 1), 2);
    for (int i = 0; i < 2; ++i) world.step();
    world.launch(world.plan());
    if (stops)
      world.settle_oldest();
    else
      world.cancel(id);
    EXPECT_EQ(world.heard(id).finish, stops ? Finish::stop : Finish::cancelled);
    EXPECT_EQ(world.scheduler().running(), 0);
    while (!world.in_flight().empty()) {
      EXPECT_EQ(world.scheduler().pool().free_pages(), 18);
      EXPECT_EQ(world.scheduler().table().open_rows(), 1);
      EXPECT_TRUE(world.plan().empty()) << "there is no row for the next";
      world.settle_oldest();
    }
    EXPECT_EQ(world.scheduler().pool().free_pages(), 20);
    EXPECT_EQ(world.heard(id).events, 1) << "nothing came after its end";
    EXPECT_EQ(world.step(), (Planned{{next, 20}}));
    world.drain();
    world.expect_right(next);
  }
}

// Where the device counts, penalties are as free as anybody.
TEST(StepsInFlight, PenaltiesThatTheDeviceCountsWaitForNoToken) {
  SchedulerLimits limits = limits_of(40);
  limits.device_counts = true;
  World world(limits, 1);
  const RequestId penalised = world.add({.prompt = text(20), .sampling = {.presence_penalty = 1}, .max_new_tokens = 9});
  EXPECT_EQ(world.step(), (Planned{{penalised, 20}}));
  const Batch batch = world.plan();
  ASSERT_EQ(batch.shares.size(), 1u);
  EXPECT_FALSE(batch.draws_by_history());
  EXPECT_EQ(batch.token_ids, Tokens{kFutureToken});
  Tokens history = text(20);
  history.push_back(kFutureToken);
  EXPECT_EQ(batch.history, history);
  EXPECT_EQ(batch.shares[0].generated, 1);
  world.launch(batch);
  world.settle_answered(false);
  world.drain();
  world.expect_all_right();
}

// A mask, like penalties, has to be told the token before the next is drawn: so the steps before are settled, while the
// rows of this one, its own too, are computed.
TEST(StepsInFlight, WhoDrawsByItsTextHasARowInEveryStep) {
  for (const int depth : {0, 1, 2}) {
    World world(limits_of(40), depth);
    const RequestId masked = world.add({.prompt = text(100), .max_new_tokens = 20, .mask = std::make_shared<Unused>()});
    EXPECT_EQ(world.step(), (Planned{{masked, 64}}));
    const RequestId penalised =
        world.add({.prompt = text(20, 1), .sampling = {.presence_penalty = 1}, .max_new_tokens = 20});
    EXPECT_EQ(world.step(), (Planned{{masked, 36}, {penalised, 20}}));
    const RequestId free = world.add(text(10, 2), 20);
    EXPECT_EQ(world.step(), (Planned{{masked, 1}, {penalised, 1}, {free, 10}}));
    for (int32_t i = 2; i < 15; ++i) {
      const Batch batch = world.plan();
      ASSERT_EQ(batch.shares.size(), 3u);
      EXPECT_EQ(batch.shares[0].generated, i);
      EXPECT_EQ(batch.token_ids[0] == kFutureToken, depth > 0);
      EXPECT_EQ(batch.history.back() == kFutureToken, depth > 0);
      EXPECT_TRUE(batch.draws_by_history());
      EXPECT_FALSE(batch.shares[2].by_history);
      world.launch(batch);
      EXPECT_EQ(world.in_flight().size(), 1u);
      EXPECT_EQ(std::ssize(world.heard(masked).tokens), i);
      world.settle_answered(false);
    }
    world.drain();
    world.expect_all_right();
  }
}

// Its row is computed, for a draw that nobody needs any more.
TEST(StepsInFlight, WhoHasEndedBeforeItsDrawSitsOut) {
  for (const bool fails : {false, true}) {
    World world(limits_of(40), 1);
    Request request{.prompt = text(20), .max_new_tokens = 20, .mask = std::make_shared<Unused>()};
    request.stop_ids = {expected_of(request, limits_of(40)).tokens[0]};
    const RequestId id = world.add(request), other = world.add(text(20, 1), 5);
    world.step();
    Batch batch = world.plan();
    ASSERT_EQ(batch.shares.size(), 2u);
    world.scheduler().advance(batch);
    expect_refused([&] { world.scheduler().fill_in(batch); }, "step 2 is to be filled in after step 0 of 2");
    world.model().launch(batch, world.scheduler().table());
    if (fails)
      world.fail_oldest("the weights melted");
    else
      world.settle_oldest();
    world.scheduler().fill_in(batch);
    EXPECT_TRUE(batch.shares[0].sits_out);
    EXPECT_FALSE(batch.shares[1].sits_out);
    world.model().draw(batch);
    StepResults results = world.model().answer();
    EXPECT_EQ(results.drawn[0].tokens.empty(), !fails) << "after a failure it says anything";
    world.scheduler().settle(batch, results);
    world.drain();
    EXPECT_EQ(world.heard(id).finish, fails ? Finish::failed : Finish::stop);
    EXPECT_EQ(world.heard(id).events, 1);
    if (!fails) world.expect_right(other);
  }
}

TEST(StepsInFlight, AFailedStepEndsThoseBehindItToo) {
  SchedulerLimits limits = limits_of(20);
  limits.prefill_chunk = 20;
  World world(limits, 2);
  const RequestId first = world.add(text(20), 100);
  world.step();
  const RequestId behind = world.add(text(20, 1), 100);
  world.step();
  const RequestId waits = world.add(text(20, 2), 5);
  world.fail_oldest("the weights melted");
  EXPECT_EQ(world.heard(first).finish, Finish::failed);
  EXPECT_EQ(world.heard(behind).finish, Finish::failed);
  EXPECT_EQ(world.heard(behind).error, "the weights melted");
  EXPECT_LT(world.scheduler().pool().free_pages(), 20) << "the step behind may still read them";
  world.drain();
  EXPECT_EQ(world.heard(first).events + world.heard(behind).events, 2);
  EXPECT_EQ(world.scheduler().cached_pages(), 1) << "of the one that was computed";
  world.expect_right(waits);
}

// What a step in flight computes is not shared before it is known to be computed.
TEST(StepsInFlight, OnlySettledPagesAreCached) {
  World world(limits_of(20), 1);
  const RequestId first = world.add(text(64), 5);
  world.step();
  world.cancel(first);
  EXPECT_EQ(world.scheduler().cached_pages(), 0);
  const RequestId same = world.add(text(64), 5);
  world.launch(world.plan());
  world.settle_oldest();
  EXPECT_EQ(world.scheduler().cached_pages(), 0) << "its own step is in flight";
  world.drain();
  EXPECT_EQ(world.heard(same).cached, 0);
  world.expect_right(same);
}

// Its token in flight is kept, and it comes back when all that is in flight of it has come.
TEST(StepsInFlight, ARetractedRequestIsNotAdmittedBeforeItsTokensHaveCome) {
  World world(limits_of(18), 2);
  const RequestId first = world.add(text(30), 200);
  const RequestId between = world.add(text(30, 2), 200);
  const RequestId second = world.add(text(30, 1), 200);
  for (int i = 0; i < 300 && world.scheduler().counters().retractions == 0; ++i) world.step();
  ASSERT_FALSE(world.in_flight().empty());
  const size_t heard = world.heard(second).tokens.size();
  world.cancel(first);
  world.cancel(between);
  EXPECT_TRUE(world.plan().empty());
  EXPECT_EQ(world.scheduler().running(), 0) << "it has rows in flight";
  while (!world.in_flight().empty()) world.settle_oldest();
  EXPECT_GT(world.heard(second).tokens.size(), heard) << "of the rows that were in flight";
  world.drain();
  world.expect_right(second);
}

// And nothing is launched behind it before.
TEST(StepsInFlight, ALateMaskHasItsRowComputedAgain) {
  for (const int depth : {1, 2}) {
    World world(limits_of(40), depth);
    const RequestId id = world.add({.prompt = text(40), .max_new_tokens = 9, .mask = std::make_shared<Unused>()});
    const RequestId other = world.add(text(20, 1), 20);
    EXPECT_EQ(world.step_late(id), (Planned{{id, 40}, {other, 20}}));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(world.step(), (Planned{{other, 1}})) << "it sits out";
    world.compute_mask(id);
    EXPECT_EQ(world.step(), (Planned{{other, 1}, {id, 1}}));
    EXPECT_EQ(world.step_late(id), (Planned{{id, 1}, {other, 1}}));
    const Batch again = world.plan();
    ASSERT_EQ(again.shares.size(), 2u) << "the mask is there now";
    EXPECT_EQ(again.token_ids[0], world.heard(id).tokens[0]) << "which is known: the step before is settled";
    world.launch(again);
    world.settle_answered(false);
    world.drain();
    world.expect_all_right();
  }
}

// Its row is in flight twice then, the second time with drafts, or waits for the first.
TEST(StepsInFlight, WhoSatOutIsLaunchedAgainBeforeThatStepIsSettled) {
  SchedulerLimits limits = limits_of(40);
  limits.drafts = 3;
  for (const bool speculates : {false, true}) {
    World world(limits, 2);
    const RequestId id = world.add(
        {.prompt = text(40), .max_new_tokens = 30, .mask = std::make_shared<Unused>(), .speculative = speculates});
    for (int i = 0; i < 12; ++i) {
      world.step_late(id);
      world.compute_mask(id);
      world.step();
    }
    world.drain();
    world.expect_all_right();
  }
}

TEST(StepsInFlight, AreSettledInTheOrderOfTheirLaunch) {
  World world(limits_of(20), 2);
  world.add(text(20), 10);
  const Batch first = world.plan();
  world.launch(first);
  const Batch second = world.plan();
  world.launch(second);
  StepResults none;
  expect_refused([&] { world.scheduler().settle(second, none); }, "step 2 was settled after step 0");
  expect_refused([&] { world.scheduler().advance(second); }, "step 2 was launched after step 2");
  expect_refused([&] { world.scheduler().settle(first, none); }, "0 tokens, 0 scores and 0 numbers of 0");
}

// Where the rows of the next step lie depends on how many there are.
TEST(StepsInFlight, SeveralTokensAreForThoseWithNothingElseInFlight) {
  World world(limits_of(20), 1);
  world.add(text(20), 10);
  world.step();
  world.launch(world.plan());
  const auto doubled = [](const Batch&, StepResults& results) { results.drawn[0].tokens.push_back({.token = 1}); };
  expect_refused([&] { world.settle_oldest(doubled); }, "several tokens for a request that has gone on already");
}

// --- drafts

SchedulerLimits limits_with_drafts(int32_t drafts, int32_t pages = 20, int32_t page_size = 16) {
  SchedulerLimits limits = limits_of(pages, page_size);
  limits.drafts = drafts;
  return limits;
}

TEST(Drafts, OfADrafterThatKnowsTheAnswerAreAcceptedWhole) {
  World world(limits_with_drafts(3));
  const RequestId id = world.add(text(20), 11);
  EXPECT_EQ(world.step(), (Planned{{id, 20}}));
  EXPECT_EQ(world.step(), (Planned{{id, 4}}));
  EXPECT_EQ(world.heard(id).tokens.size(), 5u);
  EXPECT_EQ(world.step(), (Planned{{id, 4}}));
  EXPECT_EQ(world.step(), (Planned{{id, 2}})) << "only what may still be generated";
  EXPECT_FALSE(world.busy());
  world.expect_right(id);
  const Speculated& speculated = world.scheduler().counters().speculated;
  EXPECT_EQ(speculated.verifications, 3);
  EXPECT_EQ(speculated.drafts, 7);
  EXPECT_EQ(speculated.correct, 7);
  EXPECT_DOUBLE_EQ(speculated.accept_length(), 10 / 3.0);
  EXPECT_EQ(world.heard(id).speculated.correct, 7);
}

SchedulerLimits limits_with_trees(int32_t topk, int32_t drafts, int32_t pages = 20, int32_t page_size = 16) {
  SchedulerLimits limits = limits_with_drafts(drafts, pages, page_size);
  limits.topk = topk;
  return limits;
}

// Wherever the right draft stands among its siblings: as many tokens as there are levels, and one more.
TEST(DraftTrees, OfADrafterThatKnowsTheAnswerAreAcceptedToTheirDepth) {
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t least_place : {0, 2}) {
      SCOPED_TRACE(cat("pages of ", page_size, ", place ", least_place));
      World world(limits_with_trees(3, 12, 640 / page_size, page_size));
      world.least_place = least_place;
      world.strays = false;
      const RequestId id = world.add(text(20), 61);
      world.step();
      for (int step = 0; step < 9; ++step) {
        EXPECT_EQ(world.step(), (Planned{{id, 13}}));
        EXPECT_EQ(world.heard(id).tokens.size(), 6u + 5 * step);
      }
      world.drain();
      world.expect_right(id);
    }
}

TEST(DraftTrees, AreAcceptedAsOftenAsTheyHaveTheRightDraft) {
  for (const double right : {0.5, 0.8}) {
    World world(limits_with_trees(2, 14, 200), 0, right);
    world.strays = false;
    for (int i = 0; i < 4; ++i) world.add(text(20, i), 350);
    world.drain();
    world.expect_all_right();
    double expected = 1, path = 1;
    for (int depth = 0; depth < 7; ++depth) expected += path *= right;
    const double length = world.scheduler().counters().speculated.accept_length();
    EXPECT_GT(length, 0.9 * expected) << right;
    EXPECT_LT(length, 1.1 * expected) << right;
  }
}

// Beside chunks of a prompt only chains are verified: of each tree its best path.
TEST(DraftTrees, BesidePromptsGiveTheirBestPath) {
  SchedulerLimits limits = limits_with_trees(3, 9, 60);
  limits.mixed_chunk = 8;
  World world(limits);
  const RequestId id = world.add(text(10), 100);
  for (int i = 0; i < 3; ++i) world.step();
  world.add(text(60, 5), 5);
  int32_t beside = 0;
  for (int i = 0; i < 4; ++i)
    world.step_with([&](const Batch& batch, StepResults&) {
      bool prompts = false;
      for (const Share& share : batch.shares) prompts = prompts || share.prefills;
      EXPECT_EQ(batch.has_trees(), !prompts);
      for (const Share& share : batch.shares)
        if (prompts && share.id == id) beside += share.drafts;
    });
  EXPECT_GT(beside, 0);
  world.drain();
  world.expect_all_right();
}

// A device that verifies chains gets nothing else, whatever drafters say.
TEST(DraftTrees, AreChainsWhereTheLimitsHaveNone) {
  const SchedulerLimits limits = limits_with_drafts(9, 60);
  const auto branching = [](const Request&) -> std::unique_ptr<Drafter> {
    class Branching final : public Drafter {
      void propose(std::span<const int32_t>, int32_t most, std::vector<DraftToken>& drafts) override {
        for (int32_t i = 0; i < most; ++i) drafts.push_back({.token = i, .hit = 0.9f, .back = i / 2 + 1});
      }
    };
    return std::make_unique<Branching>();
  };
  Scheduler scheduler(limits, branching, generous(limits.mixed_chunk), free_rows(limits));
  HashModel model(limits);
  scheduler.add(1, {.prompt = text(20), .max_new_tokens = 30}, [](const Output&) {});
  int64_t drafts = 0;
  while (scheduler.running() + scheduler.waiting() > 0) {
    const Batch batch = scheduler.plan();
    EXPECT_FALSE(batch.has_trees());
    for (const Share& share : batch.shares) drafts += share.drafts;
    scheduler.advance(batch);
    StepResults results = model.run(batch, scheduler.table());
    scheduler.settle(batch, results);
  }
  EXPECT_GT(drafts, 10);
}

// Nodes that were not accepted go back with their pages, and are never cached.
TEST(DraftTrees, GiveTheirPagesBackAndAreNeverCached) {
  World world(limits_with_trees(4, 12, 60, 1), 0, 0.5);
  const RequestId id = world.add(text(20), 25);
  world.step();
  while (world.busy()) {
    world.step();
    if (!world.busy()) break;
    const auto in_pages = static_cast<int32_t>(20 + world.heard(id).tokens.size()) - 1;
    EXPECT_EQ(60 - world.scheduler().pool().free_pages(), in_pages);
  }
  world.expect_right(id);
  EXPECT_EQ(world.scheduler().cached_pages(), 44) << "the text but its last token";
}

TEST(Drafts, ThatAreAlwaysWrongCostRowsAndNothingElse) {
  for (const int32_t page_size : {1, 16}) {
    World world(limits_with_drafts(5, 320 / page_size, page_size), 0, 0);
    const RequestId id = world.add(text(20), 40);
    world.step();
    for (int i = 1; i < 40; ++i) {
      EXPECT_EQ(world.step(), (Planned{{id, std::min(6, 40 - i)}}));
      EXPECT_EQ(world.heard(id).tokens.size(), static_cast<size_t>(i + 1));
    }
    world.expect_right(id);
    EXPECT_EQ(world.scheduler().counters().speculated.correct, 0);
    EXPECT_EQ(world.heard(id).speculated.verifications, 38);
  }
}

// A drafter that is right with probability q gives 1 + q + q^2 + ... tokens a verification: a wrong position, or a
// draft that is compared with the wrong draw, would give fewer.
TEST(Drafts, AreAcceptedAsOftenAsTheyAreRight) {
  for (const auto& [right, least, most] : {std::tuple{0.5, 1.8, 2.2}, std::tuple{0.8, 3.6, 4.4}}) {
    World world(limits_with_drafts(7, 60), 0, right);
    for (int i = 0; i < 6; ++i) world.add(text(20, i), 120);
    world.drain();
    world.expect_all_right();
    EXPECT_GT(world.scheduler().counters().speculated.accept_length(), least);
    EXPECT_LT(world.scheduler().counters().speculated.accept_length(), most);
  }
}

TEST(Drafts, RideBesidePromptsAndRequestsThatDoNotSpeculate) {
  World world(limits_with_drafts(3, 40));
  const RequestId a = world.add(text(20), 50);
  const RequestId plain = world.add({.prompt = text(20, 1), .max_new_tokens = 50, .speculative = false});
  world.step();
  const RequestId c = world.add(text(40, 2), 1);
  EXPECT_EQ(world.step(), (Planned{{a, 4}, {plain, 1}, {c, 16}}));
  world.drain();
  world.expect_all_right();
  EXPECT_EQ(world.heard(plain).speculated.verifications, 0);
}

// Of ten pages the request has two, and eight are cached.
TEST(Drafts, TakeOnlyPagesThatAreFree) {
  for (const int32_t topk : {1, 3}) {
    World world(limits_with_trees(topk, 12, 10));
    world.add(text(129, 1), 1);
    world.drain();
    ASSERT_EQ(world.scheduler().cached_pages(), 8);
    const RequestId id = world.add(text(20), 60);
    EXPECT_EQ(world.step(), (Planned{{id, 20}}));
    ASSERT_EQ(world.scheduler().pool().free_pages(), 0);
    EXPECT_EQ(world.step(), (Planned{{id, 12}})) << "to the end of its page";
    EXPECT_EQ(world.scheduler().cached_pages(), 9) << "eight, and its own first";
    world.drain();
    world.expect_right(id);
  }
}

// The cache fills the pool: a page that the request's own tokens need makes room for one of drafts as well.
TEST(Drafts, GetOnWhereTheCacheHasFilledThePool) {
  World world(limits_with_drafts(6, 20));
  world.add(text(257, 1), 1);
  world.drain();
  ASSERT_EQ(world.scheduler().cached_pages(), 16);
  const RequestId id = world.add(text(20), 160);
  EXPECT_EQ(world.step(), (Planned{{id, 20}}));
  int cut = 0;
  while (world.heard(id).tokens.size() < 150) cut += world.step() != Planned{{id, 7}};
  EXPECT_LE(cut, 4) << "at every other end of a page, not at all eight";
  EXPECT_LT(world.scheduler().cached_pages(), 20);
  world.drain();
  world.expect_right(id);
}

// Four requests of up to 60 drafts each, and a step has 64: no more pages than these may take are evicted for them.
TEST(Drafts, EvictNoMoreThanAStepMayUse) {
  const SchedulerLimits limits = limits_with_drafts(60, 500, 1);
  World world(limits, 0, 0);
  world.add(text(381, 1), 1);
  world.drain();
  for (int i = 0; i < 4; ++i) world.add(text(20, 10 * i), 60);
  int32_t least = world.scheduler().evictable_pages(), most_evicted = 0;
  while (world.busy()) {
    world.step();
    most_evicted = std::max(most_evicted, least - world.scheduler().evictable_pages());
    least = std::min(least, world.scheduler().evictable_pages());
  }
  EXPECT_GT(most_evicted, 0);
  EXPECT_LE(most_evicted, limits.draft_rows() + 4) << "and one for the token of each";
  world.expect_all_right();
}

// Nor do those that were wrong stay: what is cached is what was generated.
TEST(Drafts, GiveTheirPagesBackAndAreNeverCached) {
  World world(limits_with_drafts(12, 40, 1), 0, 0);
  const RequestId id = world.add(text(20), 10);
  while (world.busy()) {
    world.step();
    const auto computed = 20 + std::max<int64_t>(std::ssize(world.heard(id).tokens) - 1, 0);
    EXPECT_EQ(world.scheduler().pool().free_pages(), 40 - computed);
  }
  EXPECT_EQ(world.scheduler().cached_pages(), 29);
  Tokens whole = text(20);
  whole.insert(whole.end(), world.heard(id).tokens.begin(), world.heard(id).tokens.end());
  const RequestId same = world.add(whole, 5);
  world.drain();
  EXPECT_EQ(world.heard(same).cached, 29);
  world.expect_all_right();
}

// Of 21 tokens and 11 with each step: the 64 after which pages are cached again are stepped over.
TEST(Drafts, WhatIsGeneratedIsSharedWhileItsRequestRuns) {
  World world(limits_with_drafts(10, 40));
  const RequestId id = world.add(text(21), 200);
  while (world.heard(id).tokens.size() < 60) world.step();
  EXPECT_EQ(world.scheduler().cached_pages(), 4) << "of 64 tokens and more";
  world.drain();
  world.expect_right(id);
}

TEST(Drafts, ThatDoNotPayAreNotVerified) {
  const SchedulerLimits limits = limits_with_drafts(5);
  const auto unsure = [](const Request&) -> std::unique_ptr<Drafter> {
    class Unsure final : public Drafter {
      void propose(std::span<const int32_t>, int32_t most, std::vector<DraftToken>& drafts) override {
        drafts.assign(most, {.token = 1, .hit = 0.01f});
      }
    };
    return std::make_unique<Unsure>();
  };
  Scheduler scheduler(limits, unsure);
  HashModel model(limits);
  scheduler.add(1, {.prompt = text(20), .max_new_tokens = 20}, [](const Output&) {});
  for (int i = 0; i < 20; ++i) {
    const Batch batch = scheduler.plan();
    EXPECT_EQ(batch.rows(), i == 0 ? 20 : 1);
    scheduler.advance(batch);
    StepResults results = model.run(batch, scheduler.table());
    scheduler.settle(batch, results);
  }
}

// Both are launched together or not at all: the one that is not drafted for would else have every other step alone.
TEST(Drafts, AllWaitForTheTokensThatDraftsFollow) {
  SchedulerLimits limits = limits_with_drafts(3);
  World world(limits, 1);
  const RequestId drafted = world.add(text(20), 12);
  const RequestId other = world.add({.prompt = text(20, 3), .max_new_tokens = 12, .speculative = false});
  world.launch(world.plan());
  EXPECT_TRUE(world.plan().empty()) << "their first tokens are not known";
  world.settle_oldest();
  Batch batch = world.plan();
  EXPECT_TRUE(batch.waited);
  ASSERT_EQ(batch.shares.size(), 2u);
  EXPECT_EQ(batch.shares[0].drafts, 3);
  world.launch(batch);
  EXPECT_TRUE(world.plan().empty()) << "nor how many drafts come";
  world.drain();
  world.expect_right(drafted);
  world.expect_right(other);
}

TEST(Drafts, StepsOverlapWhereTheyDoNotPay) {
  World world(limits_with_drafts(3), 1, 1, 0);
  const RequestId id = world.add(text(20), 12);
  world.launch(world.plan());
  for (int i = 0; i < 11; ++i) {
    const Batch batch = world.plan();
    ASSERT_EQ(batch.rows(), 1);
    EXPECT_EQ(batch.token_ids[0], kFutureToken);
    EXPECT_FALSE(batch.waited);
    world.launch(batch);
    world.settle_oldest();
  }
  world.drain();
  world.expect_right(id);
}

// A draft model that has slots for everybody and is never sure of anything.
class UnsureModel : public DraftModel {
 public:
  bool has_slots(std::span<const PageId>) const override { return true; }
  void catch_up(std::span<const RequestRow>) override {}
  DraftToken first(RequestRow) const override { return {.token = 1, .hit = 0.001f}; }
  int32_t draft(std::span<const DraftsWanted> wanted) override {
    for (const DraftsWanted& each : wanted)
      if (each.most > 0) each.drafts->push_back(first(each.row));
    return 0;
  }
};

// Has slots of no page that somebody else has filled.
class ModelOfItsOwnPages final : public UnsureModel {
 public:
  bool has_slots(std::span<const PageId> pages) const override { return pages.empty(); }
};

// It is left while the token of its prompt's end is being drawn, since it gets a page that has no slots: pages of
// passes go back, and those of rows that were launched meanwhile do not.
TEST(DraftsAtOnce, WhoIsLeftWhileItsTokenIsDrawnKeepsThePagesOfRowsInFlight) {
  for (const int depth : {1, 2}) {
    SCOPED_TRACE(cat("depth ", depth));
    SchedulerLimits limits = limits_with_drafts(3, 600, 1);
    limits.draft_model = limits.drafts_at_once = true;
    World world(limits, depth, 1, 0);
    ModelOfItsOwnPages model;
    world.scheduler().set_draft_model(model);
    Tokens first = text(16), second = text(15);  // fewer tokens in common than are waited for
    const Tokens own = text(45, 3);
    second.insert(second.end(), own.begin(), own.end());
    world.add({.prompt = first, .max_new_tokens = 20, .speculative = false});
    const RequestId left = world.add({.prompt = second, .max_new_tokens = 20});
    while (world.busy() && !HasFailure()) world.step();
    world.expect_right(left);
  }
}

// The step before is settled between its launch and its draws: it gets pages that have no slots, and what the model
// would make of the rows behind them would look whole.
TEST(DraftsAtOnce, WhoIsLeftBeforeTheDrawsOfAStepIsNotFollowedInIt) {
  SchedulerLimits limits = limits_with_drafts(3, 600, 1);
  limits.draft_model = limits.drafts_at_once = limits.draws_at_once = true;
  limits.prefill_chunk = 48;
  World world(limits, 1, 1, 0);
  ModelOfItsOwnPages model;
  world.scheduler().set_draft_model(model);
  Tokens second = text(15);  // fewer tokens in common than are waited for
  const Tokens own = text(45, 3);
  second.insert(second.end(), own.begin(), own.end());
  world.add({.prompt = text(16), .max_new_tokens = 20, .mask = std::make_shared<Unused>()});
  const RequestId left = world.add({.prompt = second, .max_new_tokens = 20});
  world.step();
  Batch batch = world.plan();
  ASSERT_EQ(batch.shares.size(), 2u);
  EXPECT_TRUE(batch.shares[0].by_history && batch.shares[1].followed);
  world.scheduler().advance(batch);
  world.model().launch(batch, world.scheduler().table());
  world.settle_oldest();
  world.scheduler().fill_in(batch);
  EXPECT_FALSE(batch.shares[1].followed);
  world.model().draw(batch);
  StepResults results = world.model().answer();
  world.scheduler().settle(batch, results);
  world.drain();
  world.expect_right(left);
}

// While somebody is followed the next step is planned when all tokens are known, for those beside it too; when it is
// left, since nothing is gained, steps overlap.
TEST(DraftsAtOnce, StepsOverlapWhenNobodyIsFollowed) {
  SchedulerLimits limits = limits_with_drafts(3, 600, 1);
  limits.draft_model = limits.drafts_at_once = true;
  World world(limits, 1, 1, 0);
  UnsureModel model;
  world.scheduler().set_draft_model(model);
  world.add({.prompt = text(20), .max_new_tokens = 200});
  world.add({.prompt = text(20, 3), .max_new_tokens = 200, .speculative = false});
  bool follows = true;
  int overlapped = 0;
  world.launch(world.plan());
  for (int step = 0; step < 150; ++step) {
    const Batch batch = world.plan();
    EXPECT_TRUE(!batch.is_followed() || batch.prompt_rows() > 0) << "its token is not known";
    if (!batch.empty() && batch.prompt_rows() == 0) {
      ASSERT_EQ(batch.shares.size(), 2u) << "all go on together";
      EXPECT_EQ(batch.token_ids[0], kFutureToken);
      ++overlapped;
    }
    if (!batch.empty()) world.launch(batch);
    world.settle_oldest([](const Batch&, StepResults& results) { results.time = std::chrono::milliseconds(1); });
    if (world.scheduler().in_flight()) continue;
    const Batch alone = world.plan();
    follows = alone.is_followed();
    world.launch(alone);
  }
  EXPECT_FALSE(follows);
  EXPECT_GT(overlapped, 50);
  world.drain();
  world.expect_all_right();
}

// Of one request's text, all of which it knows; its passes take a while, if somebody wants them.
class KnowingModel final : public DraftModel {
 public:
  KnowingModel(Tokens whole, const Tokens& heard, int32_t prompt, std::chrono::microseconds pass)
      : whole_(std::move(whole)), heard_(heard), prompt_(prompt), pass_(pass) {}
  bool has_slots(std::span<const PageId>) const override { return true; }
  void catch_up(std::span<const RequestRow>) override {}
  DraftToken first(RequestRow) const override {
    ++(made > 0 ? asked_with_passes : asked_without)[heard_.size()];
    return draft(0);
  }
  int32_t draft(std::span<const DraftsWanted> wanted) override {
    for (int32_t i = 0; i < std::min(made + 1, wanted[0].most); ++i) wanted[0].drafts->push_back(draft(i));
    for (const auto start = Clock::now(); Clock::now() - start < made * pass_;) {
    }
    return made;
  }

  static constexpr int32_t kPasses = 5;
  int32_t made = 0;                                                // passes
  mutable std::map<size_t, int> asked_with_passes, asked_without;  // by tokens that were generated

 private:
  DraftToken draft(int32_t i) const {
    const size_t at = prompt_ + heard_.size() + i;
    return {.token = at < whole_.size() ? whole_[at] : 0, .hit = 0.5f};
  }
  Tokens whole_;
  const Tokens& heard_;
  int32_t prompt_;
  std::chrono::microseconds pass_;
};

// A request's own drafter, which from the 100th token on is surer than anybody, and wrong.
class SureOfALongText final : public Drafter {
 public:
  void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) override {
    if (text.size() < 100) return;
    for (int32_t i = 0; i < most; ++i)
      drafts.push_back({.token = (text.back() + 1) % testing::kVocabulary, .hit = 0.9999f});
  }
};

// What comes of a request that gets its own drafts, sure and wrong, from its 80th token on.
struct SureAndWrong {
  SureAndWrong() {
    SchedulerLimits limits = limits_with_drafts(KnowingModel::kPasses + 1, 100);
    limits.draft_model = limits.drafts_at_once = true;
    const Request request{.prompt = text(20), .max_new_tokens = 370};
    Tokens whole = request.prompt;
    const Tokens answer = expected_of(request, limits).tokens;
    whole.insert(whole.end(), answer.begin(), answer.end());
    model.emplace(whole, heard, 20, std::chrono::microseconds(200));
    Scheduler scheduler(
        limits, [](const Request&) { return std::make_unique<SureOfALongText>(); }, generous(limits.mixed_chunk),
        free_rows(limits));
    HashModel target(limits);
    scheduler.set_draft_model(*model);
    scheduler.add(1, request, [&](const Output& output) { heard.push_back(output.token); });
    while (scheduler.running() + scheduler.waiting() > 0) {
      const bool is_long = heard.size() >= 80;
      const Batch batch = scheduler.plan();
      model->made = batch.shares[0].passes;
      steps += is_long;
      passes += is_long && batch.shares[0].passes > 0;
      scheduler.advance(batch);
      StepResults results = target.run(batch, scheduler.table());
      results.time = std::chrono::milliseconds(1);
      scheduler.settle(batch, results);
    }
    EXPECT_EQ(heard, answer);
    EXPECT_GT(steps, 200) << "one token each";
  }

  Tokens heard;
  std::optional<KnowingModel> model;
  int steps = 0, passes = 0;  // from the 80th token on
};

// Passes that a device has made take their time, whether the drafts are wanted or not: where a request's own are
// better, the model is soon asked no more.
TEST(DraftsAtOnce, ThatNobodyWantsArePaidForAndSoAreNotMade) {
  const SureAndWrong request;
  EXPECT_LT(request.passes, request.steps / 8);
}

// One step in 64, whose passes were not made since nobody knew: so it is the next step that tells, for which they were.
TEST(DraftsAtOnce, AreThereWhereTheModelIsAskedAgain) {
  const SureAndWrong request;
  const auto from_200 = [](const std::map<size_t, int>& asked) {
    return std::distance(asked.lower_bound(200), asked.lower_bound(360));
  };
  EXPECT_GE(from_200(request.model->asked_without), 2);
  EXPECT_EQ(from_200(request.model->asked_with_passes), from_200(request.model->asked_without));
}

// 1, 2, 3 ... tokens, and the context's end: passes are made while the next step may take more than the first draft.
TEST(DraftsAtOnce, AreMadeForThoseWhoMayUseThem) {
  for (const int32_t page_size : {1, 16, 128})
    for (int32_t most = 1; most < 20; ++most) {
      SCOPED_TRACE(cat("pages of ", page_size, ", ", most, " tokens"));
      for (const bool at_the_end : {false, true}) {  // of the context
        SchedulerLimits limits = limits_with_drafts(6, 1000 / page_size, page_size);
        limits.draft_model = limits.drafts_at_once = true;
        limits.prefill_chunk = 400;
        World world(limits, 0, 1, 0);
        UnsureModel model;
        world.scheduler().set_draft_model(model);
        const RequestId id = world.add(text(at_the_end ? limits.context - most : 20), at_the_end ? -1 : most);
        for (int32_t drawn = 0; drawn < most; ++drawn) {
          const Batch batch = world.plan();
          ASSERT_EQ(batch.shares.size(), 1u);
          const int32_t next_drafts = most - drawn - 2, room = at_the_end ? most - drawn : limits.context;
          const int32_t end = batch.shares[0].drafts + 1 + limits.passes_at_once();
          EXPECT_EQ(batch.shares[0].passes > 0, next_drafts > 1 && room >= end) << drawn;
          world.launch(batch);
          world.settle_oldest();
        }
        EXPECT_FALSE(world.busy());
        world.expect_right(id);
      }
    }
}

// A draw that depends on the draws before it cannot be made beside them.
TEST(Drafts, AreNotMadeWhereADeviceThatDrawsAllAtOnceCouldNotVerifyThem) {
  SchedulerLimits limits = limits_with_drafts(3);
  limits.draws_at_once = limits.device_counts = true;
  World world(limits, 1);
  world.add({.prompt = text(20), .sampling = {.presence_penalty = 1}, .max_new_tokens = 12});
  world.drain();
  EXPECT_EQ(world.scheduler().counters().speculated.drafts, 0);
  world.add(text(20), 12);
  world.drain();
  EXPECT_GT(world.scheduler().counters().speculated.drafts, 0);
}

// A mask that throws at a draft's row ends its request with the tokens before it.
TEST(Drafts, AnErrorInTheWalkComesAfterItsTokens) {
  World world(limits_with_drafts(3));
  const RequestId id = world.add(text(20), 30);
  world.step();
  world.step_with([](const Batch&, StepResults& results) {
    ASSERT_EQ(results.drawn.size(), 4u);
    results.drawn[2].tokens.clear();
    results.drawn[2].error = "for the test";
    results.drawn[3].tokens.clear();
  });
  EXPECT_EQ(world.heard(id).tokens.size(), 3u);
  EXPECT_EQ(world.heard(id).finish, Finish::failed);
  EXPECT_EQ(world.heard(id).error, "for the test");
}

// A step whose mask was late has verified nothing.
TEST(Drafts, OfALateRowAreCountedWhenTheyAreVerified) {
  World world(limits_with_drafts(3));
  const RequestId id = world.add({.prompt = text(20), .max_new_tokens = 11, .mask = std::make_shared<Unused>()});
  world.step();
  EXPECT_EQ(world.step_late(id), (Planned{{id, 4}}));
  world.compute_mask(id);
  world.drain();
  world.expect_right(id);
  const Speculated& speculated = world.heard(id).speculated;
  EXPECT_EQ(speculated.verifications, 3);
  EXPECT_EQ(speculated.drafts, 7);
  EXPECT_EQ(speculated.correct, 7) << "and 3 that came with them, and the first: 11";
}

// --- random schedules

struct Device {
  int depth, most_tokens;   // how many steps it answers late; tokens of a draw
  int32_t most_drafts = 0;  // of a request
  int32_t most_topk = 1;    // of trees of them
  bool at_once = false;     // and a draft model makes others behind each step
};

class RandomSchedule {
 public:
  RandomSchedule(uint32_t seed, const Device& device)
      : random_(seed),
        every_step_(device.depth == 0 && device.most_tokens == 1),
        limits_(random_limits(device)),
        world_(limits_, device.depth, below(4) / 3.0, device.depth > 0 ? 0.5 : 1) {
    world_.model().most_tokens = device.most_tokens;
    for (int i = 0; i < 3; ++i) themes_.push_back(random_tokens(700));
    world_.set_late([this](const Share& share) {
      const bool late = below(8) == 0;
      if (late) decode_.erase(share.id), prefill_.erase(share.id);
      return late;
    });
  }

  void run() {
    const int arrivals = 40;
    int steps = 0, come = 0;
    while ((come < arrivals || world_.busy()) && !::testing::Test::HasFailure()) {
      for (; come < arrivals && below(3) == 0; ++come) world_.add(random_request());
      disturb();
      step();
      ASSERT_LT(++steps, 60000) << "somebody waits for ever";
    }
    expect_everybody_right();
  }

  std::string text() const {
    return cat("context ", limits_.context, ", ", limits_.pages, " pages of ", limits_.page_size.tokens(), ", running ",
               limits_.running, ", chunks ", limits_.prefill_chunk, " and ", limits_.mixed_chunk, ", cache ",
               limits_.prefix_cache);
  }
  int64_t retractions() { return world_.scheduler().counters().retractions; }
  int64_t cached() { return world_.scheduler().counters().cached_prompt_tokens; }
  int64_t passing() const { return world_.passing(); }
  int64_t correct_drafts() { return world_.scheduler().counters().speculated.correct; }

 private:
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }

  SchedulerLimits random_limits(const Device& device) {
    const int32_t most_drafts = device.most_drafts;
    const int32_t page_sizes[] = {1, 16, 64};
    const PageSize page_size(page_sizes[below(3)]);
    const int32_t context = 40 + below(below(2) ? 100 : 600);
    return {.context = context,
            .pages = page_size.pages_for(context / 2 + below(context)) + 1,
            .page_size = page_size,
            .running = 1 + below(8),
            .prefill_chunk = 1 + below(64),
            .mixed_chunk = 1 + below(64),
            .prefix_cache = below(5) > 0,
            .device_counts = below(2) > 0,
            .drafts = most_drafts ? 1 + below(most_drafts) : 0,
            .topk = device.most_topk > 1 ? 2 + below(device.most_topk - 1) : 1,
            .draft_model = device.at_once || (most_drafts > 0 && below(2) > 0),
            .drafts_at_once = device.at_once,
            .first_wait = below(2) ? below(64) : 0};
  }
  Tokens random_tokens(int32_t length) {
    Tokens tokens(length);
    for (int32_t& token : tokens) token = below(testing::kVocabulary);
    return tokens;
  }
  Request random_request() {
    const int32_t most = std::min(limits_.context, limits_.pages * limits_.page_size.tokens()) - 1;
    const int32_t length = 1 + below(below(4) ? std::min(most, 60) : most), shared = below(length + 1);
    const Tokens& theme = themes_[below(3)];
    Request request{.prompt = Tokens(theme.begin(), theme.begin() + shared),
                    .max_new_tokens = below(4) == 0 ? -1 : below(below(2) ? 300 : 20),
                    .priority = below(4) == 0 ? below(3) - 1 : 0,
                    .salt = below(4) == 0 ? "salt" : ""};
    const Tokens own = random_tokens(length - shared);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    if (below(3) == 0) request.stop_ids = {below(testing::kVocabulary)};
    if (below(6) == 0) request.sampling.presence_penalty = 1;  // which the model ignores, but not the scheduler
    if (below(6) == 0) request.mask = std::make_shared<Unused>();
    if (limits_.drafts > 0) request.speculative = below(5) > 0;
    if (below(8) == 0) {
      request.max_new_tokens = 0;
      request.pooling = below(2) ? Pooling::mean : Pooling::last;
    } else if (below(3) == 0) {
      request.prompt_logprobs_from = below(3) ? below(length + 2) : 0;
    }
    return request;
  }

  void disturb() {
    if (below(40) == 0 && !world_.requests().empty()) {
      const RequestId id = 1 + below(static_cast<int32_t>(world_.requests().size()));
      if (world_.heard(id).finish == Finish::none) ended_early_[id] = Finish::cancelled;
      world_.cancel(id);
      decode_.erase(id);
      prefill_.erase(id);
    }
    if (below(50) == 0) world_.scheduler().flush_cache();
    for (const auto& [id, mask] : world_.late_masks())
      if (!mask->ready() && below(4) == 0) world_.compute_mask(id);
  }

  void step() {
    const int64_t retractions_before = retractions();
    const Batch batch = world_.plan();
    expect_sound(batch);
    if (every_step_ && retractions() == retractions_before) expect_progress(batch);
    remember(batch);
    world_.launch(batch);
    if (!world_.in_flight().empty() && below(300) == 0)
      fail();
    else if (!world_.in_flight().empty() && below(200) == 0)
      world_.settle_oldest([&](const Batch& oldest, StepResults& results) { spoil_a_draw(oldest, results); });
    world_.settle_answered(batch.empty());
    while (!world_.in_flight().empty() && below(20) == 0) world_.settle_oldest();  // the device catches up
  }

  // Everybody who has rows in flight.
  void fail() {
    for (const Batch& batch : world_.in_flight())
      for (const Share& share : batch.shares)
        if (world_.heard(share.id).finish == Finish::none) ended_early_[share.id] = Finish::failed;
    world_.fail_oldest("for the test");
    decode_.clear();
    prefill_.clear();
  }

  void spoil_a_draw(const Batch& batch, StepResults& results) {
    if (batch.drawn.empty()) return;
    const int32_t index = below(static_cast<int32_t>(batch.drawn.size()));
    const Share& share = batch.shares[batch.drawn[index].share];
    results.drawn[share.drawn.begin].error = "for the test";
    const RequestId id = share.id;
    if (world_.heard(id).finish == Finish::none) ended_early_[id] = Finish::failed;
    decode_.erase(id);
  }

  void expect_sound(const Batch& batch) {
    int32_t rows = 0, prompt_rows = 0, decoders = 0, kept_rows = 0;
    std::map<RequestId, int> seen;
    bool prompts_began = false;
    for (const Share& share : batch.shares) {
      EXPECT_EQ(++seen[share.id], 1);
      EXPECT_EQ(world_.heard(share.id).finish, Finish::none) << "request " << share.id << " has ended";
      EXPECT_GE(share.count, 1);
      EXPECT_TRUE(share.kept.empty() || (share.kept.begin >= share.position && share.kept.end <= share.end()));
      EXPECT_EQ(share.first_row, rows);
      kept_rows += share.kept.count();
      rows += share.count;
      if (share.prefills) prompt_rows += share.count;
      decoders += !share.prefills;
      EXPECT_TRUE(share.prefills || share.draws);
      EXPECT_FALSE(prompts_began && !share.prefills) << "a decode row after a prompt's";
      EXPECT_LE(share.drafts, world_.requests().at(share.id).speculative && !share.prefills ? limits_.drafts : 0);
      EXPECT_TRUE(share.prefills || share.count == 1 + share.drafts);
      EXPECT_FALSE(share.branches && batch.shares.back().prefills) << "a tree beside a prompt";
      prompts_began = share.prefills;
    }
    EXPECT_EQ(batch.rows(), rows);
    EXPECT_LE(batch.rows(), limits_.rows());
    EXPECT_EQ(std::ssize(batch.scored) + std::ssize(batch.pooled), kept_rows);
    EXPECT_LE(kept_rows, limits_.kept_rows());
    EXPECT_LE(batch.wanted_rows(), limits_.wanted_rows());
    EXPECT_LE(limits_.wanted_rows(), limits_.rows());
    EXPECT_EQ(batch.prompt_rows(), prompt_rows);
    EXPECT_LE(prompt_rows, decoders ? std::max(limits_.mixed_chunk, std::min(limits_.prefill_chunk, limits_.first_wait))
                                    : std::max(limits_.mixed_chunk, limits_.prefill_chunk));
    EXPECT_LE(std::ssize(batch.shares), limits_.running);
  }

  // Whoever decodes goes on in every step, and so does some prompt while one is being computed and there are pages.
  void expect_progress(const Batch& batch) {
    std::set<RequestId> missing = decode_;
    bool prompts = false;
    for (const Share& share : batch.shares) {
      missing.erase(share.id);
      prompts = prompts || share.prefills;
    }
    for (const RequestId id : missing)
      EXPECT_NE(world_.heard(id).finish, Finish::none) << "request " << id << " starves";
    EXPECT_TRUE(prompts || prefill_.empty() || world_.scheduler().pool().free_pages() == 0);
  }
  void remember(const Batch& batch) {
    decode_.clear();
    prefill_.clear();
    for (const Share& share : batch.shares) (share.draws ? decode_ : prefill_).insert(share.id);
    std::erase_if(prefill_, [&](RequestId id) { return world_.requests().at(id).max_new_tokens == 0; });
  }

  void expect_everybody_right() {
    for (const auto& [id, request] : world_.requests()) {
      SCOPED_TRACE(cat("request ", id));
      const auto early = ended_early_.find(id);
      if (early == ended_early_.end()) {
        world_.expect_right(id);
        continue;
      }
      const Expected expected = expected_of(request, limits_);
      const Tokens &all = expected.tokens, &got = world_.heard(id).tokens;
      EXPECT_EQ(world_.heard(id).finish, early->second);
      if (!got.empty()) {
        EXPECT_EQ(world_.heard(id).prompt_logprobs, expected.prompt_logprobs);
      }
      ASSERT_LE(got.size(), all.size());
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()));
    }
    EXPECT_EQ(world_.scheduler().pool().free_pages() + world_.scheduler().cached_pages(), limits_.pages);
  }

  std::mt19937 random_;
  bool every_step_;  // whoever decodes goes on
  SchedulerLimits limits_;
  World world_;
  std::vector<Tokens> themes_;
  std::map<RequestId, Finish> ended_early_;
  std::set<RequestId> decode_, prefill_;  // what the last step left: those that drew a token, those in their prompt
};

class SchedulerWithDevice : public ::testing::TestWithParam<Device> {};

// Whatever the schedule, however late the device answers and however many tokens it gives, each request gets what it
// gets alone, exactly one end, and all pages come back; no step reads a page that had returned to the pool.
TEST_P(SchedulerWithDevice, RandomSchedulesGiveWhatEachRequestGivesAlone) {
  int64_t retractions = 0, cached = 0, correct = 0, passing = 0;
  for (uint32_t seed = 0; seed < 190; ++seed) {
    RandomSchedule schedule(seed, GetParam());
    SCOPED_TRACE(cat("seed ", seed, ": ", schedule.text()));
    schedule.run();
    retractions += schedule.retractions();
    cached += schedule.cached();
    correct += schedule.correct_drafts();
    passing += schedule.passing();
    if (HasFailure()) break;
  }
  EXPECT_GT(retractions, 40) << "the pools are too large to test retraction";
  if (GetParam().most_drafts > 0) {
    EXPECT_GT(correct, 20000);
  }
  EXPECT_EQ(passing > 1000, GetParam().at_once) << passing;
  EXPECT_GT(cached, 6000) << "the prompts share too little to test the cache";
}

INSTANTIATE_TEST_SUITE_P(, SchedulerWithDevice,
                         ::testing::Values(Device{0, 1}, Device{1, 1}, Device{2, 1}, Device{0, 4}, Device{0, 1, 12},
                                           Device{1, 1, 12}, Device{2, 1, 12}, Device{0, 1, 20, 5}, Device{2, 1, 20, 5},
                                           Device{0, 1, 12, 1, true}, Device{1, 1, 12, 1, true},
                                           Device{2, 1, 12, 1, true}),
                         [](const auto& parameter) {
                           return cat("Depth", parameter.param.depth, "Tokens", parameter.param.most_tokens, "Drafts",
                                      parameter.param.most_drafts, "Topk", parameter.param.most_topk,
                                      parameter.param.at_once ? "AtOnce" : "");
                         });

}  // namespace
}  // namespace quire::engine
