// Drafts of a head, in random schedules: what it says of a text is, to the bit, what it says of that text alone and in
// one piece, whatever pages, batches, chunks, cached prefixes, accepted and forgotten drafts lie in between; and what
// requests get is what they get without it. A wrong position, feature, mask or slot changes no answer, only how often
// drafts come: so every draft is compared. Slots and features that nobody may read are not numbers.
#include "engine/eagle_drafts.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>

#include "engine/cpu_steps.h"
#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::engine {
namespace {

using model::testing::HeadWriter;
using model::testing::knowing_head;
using model::testing::target_without_memory;
using model::testing::tiny_head;
using model::testing::TinyFile;
using model::testing::TinyHead;
using model::testing::TinyHeadFile;
using model::testing::TinyModel;
using Text = std::vector<int32_t>;

// What the head says of one text, from the beginning.
class AloneWithAText {
 public:
  AloneWithAText(const model::Model& target, const model::EagleHead& head, Dtype kv_type, Exec& exec)
      : target_(target), head_(head), kv_type_(kv_type), exec_(exec), sampler_(head.spec().draft_vocabulary, exec) {}

  std::vector<DraftToken> chain(const Text& text, size_t count) {
    begin(text);
    std::vector<DraftToken> drafts;
    Text path;
    for (; drafts.size() < count; path.push_back(drafts.back().token)) drafts.push_back(behind(path, 1).front());
    return drafts;
  }

  // The tree that so many passes make, each of its branches computed by itself.
  std::vector<DraftToken> tree(const Text& text, const GrowingTree::Size& size, const DraftRecord& record,
                               int32_t passes) {
    begin(text);
    GrowingTree tree(size, record);
    tree.add_level(behind({}, size.topk));
    std::vector<Text> paths(size.topk);
    for (int32_t pass = 0; pass < passes; ++pass) {
      std::vector<Text> next;
      std::vector<DraftToken> said;
      for (int32_t branch = 0; branch < size.topk; ++branch) {
        Text path = pass == 0 ? Text{} : paths[tree.continues(branch)];
        path.push_back(tree.token(branch));
        for (const DraftToken& draft : behind(path, size.topk)) said.push_back(draft);
        next.push_back(path);
      }
      paths = next;
      tree.add_level(said);
    }
    std::vector<DraftToken> drafts;
    tree.take_best(drafts);
    return drafts;
  }

 private:
  void begin(const Text& text) {
    model::testing::Requests requests(target_, exec_,
                                      {.rows = 512, .kv_type = kv_type_, .features = &head_.features()});
    std::vector<std::vector<float>> states(1, std::vector<float>(head_.spec().width));
    if (text.size() > 1) requests.extend(0, std::span(text).first(text.size() - 1));
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      const float* row = requests.forward().features().row(static_cast<int64_t>(i));
      states.emplace_back(row, row + head_.spec().width);
    }
    slots_.emplace(head_, exec_, PageSize(16), kv_type_);
    slots_->run(attn::Mode::draft_extend, text, states);
    length_ = static_cast<int32_t>(text.size());
    logits_ = slots_->logits(length_ - 1);
    state_ = slots_->state(length_ - 1);
  }
  // The likeliest tokens behind the text and these, which come one after the other.
  std::vector<DraftToken> behind(const Text& path, int32_t count) {
    slots_->cut(length_);
    std::vector<float> logits = logits_, state = state_;
    for (const int32_t token : path) {
      slots_->run(attn::Mode::decode, {&token, 1}, {&state, 1});
      logits = slots_->logits(0);
      state = slots_->state(0);
    }
    const ops::SamplingParams likeliest{.temperature = 0};
    const ops::Sampled sampled =
        sampler_.sample({.logits = logits.data(), .params = &likeliest, .position = 0, .top_logprobs = count}, 0);
    std::vector<DraftToken> drafts;
    for (const auto& [token, logprob] : sampled.top)
      drafts.push_back({.token = head_.token_ids()[token], .hit = std::exp(logprob)});
    return drafts;
  }

  const model::Model& target_;
  const model::EagleHead& head_;
  Dtype kv_type_;
  Exec& exec_;
  ops::Sampler sampler_;
  std::optional<model::testing::HeadSlots> slots_;  // of the text
  int32_t length_ = 0;
  std::vector<float> logits_, state_;  // behind it
};

// Stands between the scheduler and the head, and holds what the head says against what it says of the text alone.
class WatchedDrafts final : public DraftModel {
 public:
  WatchedDrafts(EagleDrafts& drafts, const SchedulerLimits& limits, const model::Model& target,
                const model::EagleHead& head, Dtype kv_type, Exec& exec)
      : drafts_(drafts), limits_(limits), alone_(target, head, kv_type, exec) {}
  bool has_slots(std::span<const PageId> pages) const override { return drafts_.has_slots(pages); }
  void catch_up(std::span<const RequestRow> rows) override {
    before_drafts(rows);
    drafts_.catch_up(rows);
    for (const RequestRow row : rows) expect_slots(row, texts.at(row.value));
    asked += std::ssize(rows);
  }
  DraftToken first(RequestRow row) const override { return drafts_.first(row); }
  int32_t draft(std::span<const DraftsWanted> wanted) override {
    std::vector<RequestRow> rows;
    for (const DraftsWanted& each : wanted) rows.push_back(each.row);
    before_drafts(rows);
    if (probe) probe(wanted);
    for (const DraftsWanted& each : wanted) poison_behind(each.row, texts.at(each.row.value));
    const int32_t passes = drafts_.draft(wanted);
    for (const DraftsWanted& each : wanted)
      if (compares) compare(each, passes);
    return passes;
  }

  // What it would give, and nobody gets.
  std::vector<std::vector<DraftToken>> drafts_of(std::span<const DraftsWanted> wanted) {
    std::vector<std::vector<DraftToken>> drafts(wanted.size());
    std::vector<DraftsWanted> same(wanted.begin(), wanted.end());
    for (size_t i = 0; i < same.size(); ++i) same[i].drafts = &drafts[i];
    drafts_.draft(same);
    return drafts;
  }

  std::map<int32_t, Text> texts;     // of request rows
  std::map<int32_t, RequestId> ids;  // likewise
  std::function<void(std::span<const RequestRow>)> before_drafts;
  std::function<void(RequestRow, const Text&)> expect_slots, poison_behind;
  std::function<void(std::span<const DraftsWanted>)> probe;  // a test's
  int64_t asked = 0, compared = 0, wrong = 0;
  int64_t branching = 0, deep = 0;  // trees; and of those, the ones in which a path was followed from pass to pass
  bool compares = true;

 private:
  void compare(const DraftsWanted& of, int32_t passes) {
    const Text& text = texts.at(of.row.value);
    EXPECT_EQ(of.position, std::ssize(text) - 1);
    if (of.drafts->empty()) return;
    const GrowingTree::Size size{.topk = limits_.topk, .depth = limits_.deepest_draft(), .most = of.most};
    const std::vector<DraftToken> expected =
        limits_.verifies_trees() ? alone_.tree(text, size, *of.record, passes) : alone_.chain(text, of.drafts->size());
    ASSERT_EQ(of.drafts->size(), expected.size());
    branching += !is_chain(expected);
    deep += !is_chain(expected) && passes > 1;
    for (size_t i = 0; i < expected.size(); ++i) {
      ++compared;
      const DraftToken& draft = (*of.drafts)[i];
      const bool same =
          draft.token == expected[i].token && draft.hit == expected[i].hit && draft.back == expected[i].back;
      wrong += !same;
    }
  }

  EagleDrafts& drafts_;
  SchedulerLimits limits_;
  AloneWithAText alone_;
};

struct WorldLimits {
  int32_t page_size = 16;
  int32_t pool_tokens = 2000;
  int32_t running = 4;
  int32_t prefill_chunk = 64;
  int32_t mixed_chunk = 16;
  bool prefix_cache = true;
  int32_t drafts = 5;
  int32_t topk = 1;
  int32_t steps = 0;
  bool own_drafts = false;  // of requests, beside the head's
  bool at_once = false;     // pages are reserved as if drafts were made behind each step
};

constexpr int32_t kMostText = 300;

// A request's own drafts: for some tokens on end good ones, as far as it can know that, then none.
class SometimesSure final : public Drafter {
 public:
  void propose(std::span<const int32_t> text, int32_t most, std::vector<DraftToken>& drafts) override {
    if (text.size() / 24 % 2 == 0) return;
    for (int32_t i = 0; i < most; ++i) drafts.push_back({.token = (text.back() * 7 + i) % 320, .hit = 0.95f});
  }
};

// A scheduler over a target and its head, stepped by hand; drafts cost nothing, so as many as may be are made.
class HeadWorld {
 public:
  HeadWorld(const model::Model& target, const model::EagleHead* head, const WorldLimits& given, Exec& exec,
            Dtype kv_type = Dtype::bf16)
      : limits_{.context = kMostText,
                .pages = PageSize(given.page_size).pages_for(given.pool_tokens),
                .page_size = PageSize(given.page_size),
                .running = given.running,
                .prefill_chunk = given.prefill_chunk,
                .mixed_chunk = given.mixed_chunk,
                .prefix_cache = given.prefix_cache,
                .drafts = head ? given.drafts : 0,
                .topk = given.topk,
                .draft_steps = given.steps,
                .draft_model = head != nullptr,
                .drafts_at_once = given.at_once},
        scheduler_(limits_, own_drafts(head && given.own_drafts), PrefillBudget(given.mixed_chunk),
                   DraftBudget(limits_.drawn_rows(), 0, 0)),
        device_({.model = target,
                 .limits = limits_,
                 .kv_type = kv_type,
                 .vocabulary = target.config().vocabulary,
                 .deterministic = false,
                 .head = head,
                 .table = scheduler_.table(),
                 .masks = masks_,
                 .exec = exec}) {
    if (!head) return;
    drafts_ = dynamic_cast<EagleDrafts*>(device_.draft_model());
    watched_ = std::make_unique<WatchedDrafts>(*drafts_, limits_, target, *head, kv_type, exec);
    watched_->before_drafts = [this](std::span<const RequestRow> rows) { poison_pages(rows); };
    watched_->expect_slots = [this](RequestRow row, const Text& text) { name_unwritten(row, text); };
    watched_->poison_behind = [this](RequestRow row, const Text& text) { poison_behind(row, text); };
    scheduler_.set_draft_model(*watched_);
  }

  struct Heard {
    Text tokens;
    std::vector<float> logprobs;
    std::vector<std::vector<std::pair<int32_t, float>>> top;
    Finish finish = Finish::none;
    Speculated speculated;
  };
  RequestId add(const Request& request) {
    const RequestId id = ++last_id_;
    texts_[id] = request.prompt;
    scheduler_.add(id, request, [this](const Output& output) {
      Heard& heard = heard_[output.id];
      if (output.token >= 0) {
        heard.tokens.push_back(output.token);
        heard.logprobs.push_back(output.logprobs.logprob);
        heard.top.push_back(output.logprobs.top);
        texts_[output.id].push_back(output.token);
      }
      heard.finish = output.finish;
      heard.speculated = output.speculated;
    });
    return id;
  }
  void step() {
    poison_pages({});
    Step step{.batch = scheduler_.plan()};
    if (step.batch.empty()) return;
    scheduler_.advance(step.batch);
    expect_room_for_passes(step.batch);
    look_at_slots(step.batch);
    std::vector<RequestRow> rows;
    for (const Share& share : step.batch.shares) rows.push_back(share.row);
    poison_pages(rows);
    for (const Share& share : step.batch.shares)
      if (watched_ && !share.prefills) poison_behind(share.row, watched_->texts.at(share.row.value));
    device_.launch(step);
    device_.draw(step);
    step.results.time = step_time;
    step.results.following = step.batch.is_followed() ? following_time : Seconds{};
    ++steps;
    followed_steps += step.batch.is_followed();
    if (watched_) follow(step);
    scheduler_.settle(step.batch, step.results);
    scheduler_.audit();
  }
  bool busy() const { return scheduler_.running() + scheduler_.waiting() > 0; }
  Heard finish(const Request& request) {
    const RequestId id = add(request);
    while (busy()) step();
    return heard_[id];
  }
  void cancel(RequestId id) { scheduler_.cancel(id); }
  const Heard& heard(RequestId id) { return heard_[id]; }
  Scheduler& scheduler() { return scheduler_; }
  WatchedDrafts& watched() { return *watched_; }
  EagleDrafts& drafts() { return *drafts_; }

  using Seconds = std::chrono::duration<double>;
  Seconds step_time = {}, following_time = {};  // that steps are said to take, and the head's part where it follows
  int64_t steps = 0, followed_steps = 0;
  int64_t passing = 0, not_passing = 0;  // shares of those that are followed and draw
  int64_t again = 0;                     // rows into pages that others hold as well

  // Makes an open row's keys, or values, in one slot no numbers, as if they had never been written.
  enum class Part : uint8_t { both, keys, values };
  void spoil(RequestRow row, int32_t position, Part part = Part::both) {
    spoil(scheduler_.table().slot(row, position), part);
  }
  // The same, undone when it ends.
  template <class Work>
  void while_spoilt(RequestRow row, int32_t position, Part part, const Work& work) {
    const std::span<std::byte> own = part_of(scheduler_.table().slot(row, position), part);
    const std::vector<std::byte> before(own.begin(), own.end());
    std::ranges::fill(own, kPoison);
    work();
    std::ranges::copy(before, own.begin());
  }
  // Whether the slot's keys, or its values, are as spoil() leaves them: not written since its page was free.
  bool is_spoilt(RequestRow row, int32_t position) const {
    const TokenSlot slot = scheduler_.table().slot(row, position);
    const auto is_poison = [&](Part part) {
      return std::ranges::all_of(part_of(slot, part), [](std::byte byte) { return byte == kPoison; });
    };
    return is_poison(Part::keys) || is_poison(Part::values);
  }
  // The slots that the head was about to read, and that had not been written: by request, position and slot.
  const std::string& unwritten() const { return unwritten_; }

 private:
  static MakeDrafter own_drafts(bool some) {
    if (!some) return {};
    return [](const Request&) { return std::make_unique<SometimesSure>(); };
  }
  // Behind all tokens that may come of the step.
  void expect_room_for_passes(const Batch& batch) {
    for (const Share& share : batch.shares) {
      const int64_t room = std::ssize(scheduler_.table().pages(share.row)) * limits_.page_size.tokens();
      if (share.passes) {
        EXPECT_TRUE(share.followed && share.draws);
        EXPECT_GE(room, share.end() + 1 + limits_.passes_at_once());
        EXPECT_LE(share.end() + 1 + limits_.passes_at_once(), limits_.context);
      }
      passing += share.passes > 0;
      not_passing += share.followed && share.draws && share.passes == 0;
    }
  }
  // No two rows are stored in the same one.
  void look_at_slots(const Batch& batch) {
    std::set<int32_t> slots;
    for (const Share& share : batch.shares)
      for (int32_t position = share.position; position < share.end(); ++position) {
        const TokenSlot slot = scheduler_.table().slot(share.row, position);
        EXPECT_TRUE(slots.insert(slot.value).second);
        const bool shared = scheduler_.pool().references(limits_.page_size.page_of(slot)) > 1;
        EXPECT_TRUE(!shared || (share.prefills && share.followed));
        again += shared;
      }
  }
  // The text of each row as the head has it after this step.
  void follow(const Step& step) {
    for (const Share& share : step.batch.shares) {
      Text& text = watched_->texts[share.row.value] = texts_.at(share.id);
      watched_->ids[share.row.value] = share.id;
      if (!share.draws) continue;
      for (int32_t i = 0; i < share.drawn.count; ++i)
        for (const ops::Sampled& sampled : step.results.drawn[share.drawn.begin + i].tokens)
          text.push_back(sampled.token);
    }
  }
  static constexpr std::byte kPoison{0xff};  // of every type, no number
  std::span<std::byte> part_of(TokenSlot slot, Part part) const {
    const kv::LayerKv layer = drafts_->store().layer(0);
    const int64_t stride = part == Part::keys ? layer.key_stride : layer.value_stride,
                  bytes = stride * size_of(layer.type);
    return {(part == Part::keys ? layer.keys : layer.values) + slot.value * bytes, static_cast<size_t>(bytes)};
  }
  void spoil(TokenSlot slot, Part part = Part::both) {
    for (const Part each : {Part::keys, Part::values})
      if (part == each || part == Part::both) std::ranges::fill(part_of(slot, each), kPoison);
  }
  void poison_page(PageId page) {
    for (int32_t i = 0; i < limits_.page_size.tokens(); ++i) spoil(limits_.page_size.slot(page, i));
    std::ranges::fill(drafts_->features_of(page), std::numeric_limits<float>::quiet_NaN());
  }
  // What nobody may read: pages that are free, slots of branches, and pages that have come from the pool to one of
  // these rows since it was looked at last (it alone has them now, and did not then), before anything is written there:
  // they may have been somebody's until a moment ago.
  void poison_pages(std::span<const RequestRow> rows) {
    if (!drafts_) return;
    const kv::PagePool& pool = scheduler_.pool();
    sole_.resize(pool.pages());
    for (int32_t page = 0; page < pool.pages(); ++page) {
      const int32_t references = page == 0 ? 0 : pool.references({page});
      if (references == 0) poison_page({page});
      if (references != 1) sole_[page] = 0;
    }
    for (const RequestRow row : rows)
      for (const PageId page : scheduler_.table().pages(row)) {
        if (pool.references(page) != 1) continue;
        if (sole_[page.value] != row.value) poison_page(page);
        sole_[page.value] = row.value;
      }
    for (int64_t slot = int64_t{pool.pages()} * limits_.page_size.tokens(); slot < drafts_->store().layout().slots();
         ++slot)
      spoil(TokenSlot{static_cast<int32_t>(slot)});  // of branches
  }
  // Of a row that was caught up the head may read every token's slot.
  void name_unwritten(RequestRow row, const Text& text) {
    for (int32_t position = 0; position < std::ssize(text); ++position)
      if (is_spoilt(row, position))
        unwritten_ += cat("request ", watched_->ids.at(row.value), ": position ", position, " in slot ",
                          scheduler_.table().slot(row, position).value, "; ");
  }
  // What lies behind the newest token of a row that decodes: drafts that are forgotten, or nothing.
  void poison_behind(RequestRow row, const Text& text) {
    const int64_t slots = std::ssize(scheduler_.table().pages(row)) * limits_.page_size.tokens();
    for (auto at = static_cast<int32_t>(text.size()); at < slots; ++at) spoil(row, at);
  }

  SchedulerLimits limits_;
  Scheduler scheduler_;
  MaskThreads masks_;
  CpuSteps device_;
  EagleDrafts* drafts_ = nullptr;
  std::unique_ptr<WatchedDrafts> watched_;
  std::vector<int32_t> sole_;  // [pages] the row that alone had the page when that was looked at last; 0: none
  std::string unwritten_;
  std::map<RequestId, Text> texts_;
  std::map<RequestId, Heard> heard_;
  RequestId last_id_ = 0;
};

class EagleDraftsTest : public ::testing::Test {
 protected:
  Exec exec_{{.threads = 2}};
};

Text random_text(int32_t count, uint64_t seed) { return model::testing::random_ids(count, 320, seed); }

Request drawn(Text prompt, int32_t tokens, float temperature) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = temperature, .top_p = 0.95f, .seed = 11},
          .max_new_tokens = tokens,
          .top_logprobs = 0};
}

// A head that knows what comes is believed and accepted, nearly whole: its sums are rounded otherwise than the
// target's.
TEST_F(EagleDraftsTest, OfAHeadThatKnowsAreAccepted) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t topk : {1, 3}) {
      SCOPED_TRACE(cat("pages of ", page_size, ", topk ", topk));
      const WorldLimits limits{.page_size = page_size, .drafts = topk == 1 ? 5 : 20, .topk = topk, .steps = 5};
      HeadWorld plain(target, nullptr, limits, exec_, Dtype::f32), drafting(target, &head, limits, exec_, Dtype::f32);
      const Request request = drawn(random_text(30, 3), 120, 0);
      const HeadWorld::Heard alone = plain.finish(request), heard = drafting.finish(request);
      EXPECT_EQ(heard.tokens, alone.tokens);
      EXPECT_EQ(heard.logprobs, alone.logprobs);
      EXPECT_GT(heard.speculated.accept_length(), topk == 1 ? 5.8 : 5.3);  // of 6; trees end with what may be generated
      EXPECT_GT(heard.speculated.accept_rate(), topk == 1 ? 0.99 : 0.2);
      EXPECT_EQ(drafting.watched().wrong, 0);
    }
}

TEST_F(EagleDraftsTest, AreNoLongerThanTheirSteps) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t topk : {1, 3}) {
    HeadWorld world(target, &head, {.drafts = 9, .topk = topk, .steps = 2}, exec_, Dtype::f32);
    const double length = world.finish(drawn(random_text(30, 3), 100, 0)).speculated.accept_length();
    EXPECT_GT(length, 2.7) << topk;
    EXPECT_LE(length, 3) << topk;
  }
}

// With trees it is right where its likeliest token is not drawn, but another that it named: at temperature 1 the same
// head, with as many rows to verify, brings more tokens a step than with chains.
TEST_F(EagleDraftsTest, TreesBringMoreThanChainsWhereTokensAreDrawn) {
  const TinyFile file(target_without_memory(0.3f));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 0.3f));
  const model::EagleHead head(head_file.path(), target, exec_);
  const Request request = drawn(random_text(30, 3), 250, 1);
  const auto length = [&](const WorldLimits& limits) {
    HeadWorld plain(target, nullptr, limits, exec_), drafting(target, &head, limits, exec_);
    const HeadWorld::Heard alone = plain.finish(request), heard = drafting.finish(request);
    EXPECT_EQ(heard.tokens, alone.tokens);
    EXPECT_EQ(heard.logprobs, alone.logprobs);
    EXPECT_EQ(drafting.watched().wrong, 0);
    return heard.speculated.accept_length();
  };
  const double chains = length({.drafts = 12}), trees = length({.drafts = 12, .topk = 4, .steps = 4});
  EXPECT_GT(trees, 1.15 * chains) << chains;
}

// Whatever temperature a request has: the head is right as often as its token is drawn.
TEST_F(EagleDraftsTest, LeaveDrawsAsTheyAre) {
  const TinyFile file(target_without_memory(0.6f));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 0.6f));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const float temperature : {0.5f, 1.0f}) {
    SCOPED_TRACE(temperature);
    HeadWorld plain(target, nullptr, {}, exec_), drafting(target, &head, {}, exec_);
    const Request request = drawn(random_text(30, 3), 200, temperature);
    const HeadWorld::Heard alone = plain.finish(request), heard = drafting.finish(request);
    EXPECT_EQ(heard.tokens, alone.tokens);
    EXPECT_EQ(heard.logprobs, alone.logprobs);
    EXPECT_GT(heard.speculated.accept_length(), 1.5);
    EXPECT_EQ(drafting.watched().wrong, 0);
  }
}

// Tokens that were drawn with drafts beside them, chains and trees, held against what the target says follows each
// token: chi-square over all pairs that are expected five times or more.
TEST_F(EagleDraftsTest, DrawnTokensHaveTheTargetsDistribution) {
  constexpr int32_t kTokens = 8;
  const TinyFile file(target_without_memory(0.15f, kTokens));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 0.15f));
  const model::EagleHead head(head_file.path(), target, exec_);
  std::array<std::array<double, kTokens>, kTokens> likely{};
  for (int32_t token = 0; token < kTokens; ++token) {
    Request request = drawn({token}, 1, 1);
    request.top_logprobs = kTokens;
    const HeadWorld::Heard heard = HeadWorld(target, nullptr, {}, exec_).finish(request);
    for (const auto& [next, logprob] : heard.top[0]) likely[token][next] = std::exp(logprob);
  }
  for (const WorldLimits& limits : {WorldLimits{}, WorldLimits{.drafts = 9, .topk = 3, .steps = 3}}) {
    SCOPED_TRACE(limits.topk);
    std::array<std::array<double, kTokens>, kTokens> drawn_pairs{};
    HeadWorld world(target, &head, limits, exec_);
    world.watched().compares = false;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      Request request = drawn({static_cast<int32_t>(seed % kTokens)}, 150, 1);
      request.sampling.top_p = 1;
      request.sampling.seed = seed;
      int32_t before = request.prompt[0];
      for (const int32_t token : world.finish(request).tokens) {
        ++drawn_pairs[before][token];
        before = token;
      }
    }
    double chi_square = 0;
    int cells = 0;
    for (int32_t token = 0; token < kTokens; ++token) {
      double count = 0;
      for (const double pairs : drawn_pairs[token]) count += pairs;
      for (int32_t next = 0; next < kTokens; ++next) {
        const double expected = count * likely[token][next];
        if (expected < 5) continue;
        ++cells;
        chi_square += (drawn_pairs[token][next] - expected) * (drawn_pairs[token][next] - expected) / expected;
      }
    }
    EXPECT_GT(cells, 40);
    EXPECT_LT(chi_square, cells + 4 * std::sqrt(2.0 * cells));  // four standard deviations
    const Speculated& speculated = world.scheduler().counters().speculated;
    EXPECT_GT(speculated.correct, 500);
    EXPECT_LT(speculated.accept_rate(), 0.9);
  }
}

// Where the text's own drafts promise more it computes nothing, and what it says afterwards is the same. Nor are
// passes planned ahead there.
TEST_F(EagleDraftsTest, AreNotAskedForWhereTheTextsOwnPromiseMore) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t page_size : {1, 16, 64}) {
    SCOPED_TRACE(page_size);
    HeadWorld plain(target, nullptr, {}, exec_, Dtype::f32);
    HeadWorld world(target, &head, {.page_size = page_size, .own_drafts = true, .at_once = true}, exec_, Dtype::f32);
    world.step_time = std::chrono::seconds(10);  // beside which real passes are nothing
    world.following_time = std::chrono::seconds(5);
    int64_t steps = 0;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const Request request = drawn(random_text(20, seed), 250, 0);
      EXPECT_EQ(world.finish(request).tokens, plain.finish(request).tokens);
      if (seed == 0) steps = world.steps, world.watched().asked = world.passing = 0;  // by then it has learned that
    }
    EXPECT_EQ(world.followed_steps, world.steps);
    EXPECT_GT(world.watched().asked, (world.steps - steps) / 8) << "24 tokens in five steps";
    EXPECT_LT(world.watched().asked, (world.steps - steps) / 4) << "and in 24 where its own drafts are wrong";
    EXPECT_LE(world.passing, world.watched().asked + 2) << "and the beginnings, when nobody knows";
    EXPECT_GT(world.passing, world.watched().asked / 2);
    EXPECT_GT(world.watched().compared, 200);
    EXPECT_EQ(world.watched().wrong, 0);
  }
}

// Whoever finds a full page in the prefix tree reads all of its slots, also those that nobody has asked for.
TEST_F(EagleDraftsTest, OfAPageThatIsFullArePutOffNoLonger) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {.own_drafts = true}, exec_, Dtype::f32);
  world.step_time = std::chrono::seconds(10);  // beside which real passes are nothing
  world.following_time = std::chrono::seconds(5);
  for (uint64_t seed = 0; seed < 2; ++seed)
    world.finish(drawn(random_text(20, seed), 250, 0));  // what to ask is learned
  world.watched().asked = 0;
  const RequestId id = world.add(drawn(random_text(25, 9), 60, 0));
  while (world.heard(id).tokens.size() < 14) world.step();  // 39 tokens of which 38 are in pages
  EXPECT_EQ(world.watched().asked, 0) << "its own drafts promise more";
  for (int32_t position = 0; position < 32; ++position) EXPECT_FALSE(world.is_spoilt({1}, position)) << position;
  for (int32_t position = 32; position < 38; ++position) EXPECT_TRUE(world.is_spoilt({1}, position)) << position;
}

// --- random schedules

class RandomWorld {
 public:
  RandomWorld(const model::Model& target, const model::EagleHead& head, int32_t topk, uint32_t seed, Exec& exec)
      : target_(target),
        head_(head),
        topk_(topk),
        own_drafts_(seed % 2 == 1),
        at_once_(topk == 1 && seed % 3 != 0),
        random_(seed),
        exec_(exec) {
    for (int i = 0; i < 2; ++i) themes_.push_back(random_text(kMostText, random_()));
  }

  void run() {
    const int32_t page_sizes[] = {1, 16, 64};
    const WorldLimits limits{.page_size = page_sizes[below(3)],
                             .pool_tokens = kMostText + below(below(topk_ > 1 ? 9 : 3) ? kMostText / 4 : 4 * kMostText),
                             .running = topk_ > 1 ? 4 + below(3) : 1 + below(6),
                             .prefill_chunk = 1 + below(64),
                             .mixed_chunk = 1 + below(32),
                             .prefix_cache = below(5) > 0,
                             .drafts = 1 + below(topk_ > 1 ? 14 : 6),
                             .topk = topk_,
                             .steps = topk_ > 1 ? 1 + below(5) : 0,
                             .own_drafts = own_drafts_,
                             .at_once = at_once_};
    SCOPED_TRACE(cat(limits.pool_tokens, " tokens in pages of ", limits.page_size, ", running ", limits.running,
                     ", chunks ", limits.prefill_chunk, " and ", limits.mixed_chunk, ", drafts ", limits.drafts,
                     ", topk ", limits.topk, ", steps ", limits.steps, ", own drafts ", limits.own_drafts));
    HeadWorld world(target_, &head_, limits, exec_);
    std::map<RequestId, Request> requests;
    std::set<RequestId> cancelled;
    for (int come = 0, steps = 0; come < 10 || world.busy(); ++steps) {
      ASSERT_LT(steps, 20000);
      if (come < 10 && below(2) == 0) {
        const Request request = random_request();
        requests.emplace(world.add(request), request);
        ++come;
      }
      if (below(60) == 0 && !requests.empty()) {
        const RequestId id = 1 + below(static_cast<int32_t>(requests.size()));
        if (world.heard(id).finish == Finish::none) cancelled.insert(id);
        world.cancel(id);
      }
      world.step();
    }
    for (const auto& [id, request] : requests) expect_same(world.heard(id), request, cancelled.contains(id));
    EXPECT_EQ(world.watched().wrong, 0) << "of " << world.watched().compared;
    EXPECT_EQ(world.unwritten(), "") << "is read";
    compared += world.watched().compared;
    branching += world.watched().branching;
    deep += world.watched().deep;
    passing += world.passing;
    not_passing += at_once_ ? world.not_passing : 0;
    again += world.again;
    retractions += world.scheduler().counters().retractions;
    cached += world.scheduler().counters().cached_prompt_tokens;
    correct += world.scheduler().counters().speculated.correct;
  }

  int64_t compared = 0, branching = 0, deep = 0, passing = 0, not_passing = 0;
  int64_t again = 0, retractions = 0, cached = 0, correct = 0;

 private:
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }
  Request random_request() {
    const int32_t length = 1 + below(120), shared = below(3) ? length - below(std::min(length, 20)) : 0;
    const Text& theme = themes_[below(2)];
    Request request =
        drawn(Text(theme.begin(), theme.begin() + shared), below(4) ? 100 + below(80) : below(10), below(2) ? 0 : 0.8f);
    const Text own = random_text(length - shared, random_());
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.speculative = below(4) > 0;
    request.priority = below(3) - 1;
    if (below(3) == 0)
      for (int i = 0; i < 6; ++i) request.stop_ids.push_back(below(320));
    if (below(4) == 0) request.sampling.presence_penalty = 0.5f;
    return request;
  }
  void expect_same(const HeadWorld::Heard& heard, const Request& request, bool cancelled) {
    HeadWorld plain(target_, nullptr, {}, exec_);
    const HeadWorld::Heard alone = plain.finish(request);
    if (cancelled) {
      ASSERT_LE(heard.tokens.size(), alone.tokens.size());
      EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.end(), alone.tokens.begin()));
      return;
    }
    EXPECT_EQ(heard.tokens, alone.tokens);
    EXPECT_EQ(heard.logprobs, alone.logprobs);
    EXPECT_EQ(heard.finish, alone.finish);
    if (!request.speculative) {
      EXPECT_EQ(heard.speculated.verifications, 0);
    }
  }

  const model::Model& target_;
  const model::EagleHead& head_;
  int32_t topk_;
  bool own_drafts_, at_once_;
  std::mt19937 random_;
  Exec& exec_;
  std::vector<Text> themes_;
};

struct HeadKind {
  const char* name;
  TinyModel target;
  TinyHead head;
  bool knows = false;
  int32_t topk = 1;
};

std::ostream& operator<<(std::ostream& out, const HeadKind& kind) { return out << kind.name; }

class EagleSchedules : public ::testing::TestWithParam<HeadKind> {};

TEST_P(EagleSchedules, SayOfATextWhatTheyDoAloneAndChangeNobodysOutput) {
  Exec exec{{.threads = 2}};
  const TinyFile file(GetParam().target);
  const model::Model target(file.path(), exec);
  const TinyHeadFile head_file(GetParam().knows ? knowing_head(target, 1) : tiny_head(target, GetParam().head));
  const model::EagleHead head(head_file.path(), target, exec);
  int64_t compared = 0, branching = 0, deep = 0, passing = 0, not_passing = 0;
  int64_t again = 0, retractions = 0, cached = 0, correct = 0;
  for (uint32_t seed = 0; seed < 6 && !HasFailure(); ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    RandomWorld world(target, head, GetParam().topk, seed, exec);
    world.run();
    branching += world.branching;
    deep += world.deep;
    compared += world.compared;
    passing += world.passing;
    not_passing += world.not_passing;
    again += world.again;
    retractions += world.retractions;
    cached += world.cached;
    correct += world.correct;
  }
  EXPECT_GT(compared, 700);
  EXPECT_GT(again, 100);
  EXPECT_GT(retractions, 0);
  EXPECT_GT(cached, 150);
  EXPECT_EQ(branching > 300, GetParam().topk > 1) << branching;
  EXPECT_EQ(deep > 100, GetParam().topk > 1) << deep;
  EXPECT_EQ(passing > 100, GetParam().topk == 1) << passing;
  EXPECT_EQ(not_passing > 10, GetParam().topk == 1) << not_passing;
  if (GetParam().knows) {
    EXPECT_GT(correct, 500);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , EagleSchedules,
    ::testing::Values(
        HeadKind{"Random", {}, {}},
        HeadKind{"Quantised", {.type = BlockType::q8_0}, {.type = BlockType::q4_1, .norm_output = false}},
        HeadKind{"Knowing", target_without_memory(1), {}, true},
        HeadKind{.name = "RandomTrees", .target = {}, .head = {.temperature = 0.1}, .topk = 3},
        HeadKind{.name = "QuantisedTrees",
                 .target = {.type = BlockType::q8_0},
                 .head = {.type = BlockType::q4_1, .norm_output = false},
                 .topk = 2},
        HeadKind{.name = "KnowingTrees", .target = target_without_memory(0.6f), .head = {}, .knows = true, .topk = 4}),
    [](const auto& parameter) { return parameter.param.name; });

// --- the checks themselves

// One slot's keys or values that were not written, or features that were not kept, must show; and the slot has a name.
TEST_F(EagleDraftsTest, AnUnwrittenSlotShows) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t topk : {1, 3})
      for (const HeadWorld::Part part : {HeadWorld::Part::keys, HeadWorld::Part::values})
        for (const int32_t spoiled : {0, 17, 34, 36}) {
          SCOPED_TRACE(cat(part == HeadWorld::Part::keys ? "keys" : "values", " of position ", spoiled, ", pages of ",
                           page_size, ", topk ", topk));
          HeadWorld world(target, &head, {.page_size = page_size, .topk = topk, .steps = 3}, exec_);
          world.add(drawn(random_text(35, 1), 20, 0));
          for (int i = 0; i < 4; ++i) world.step();
          EXPECT_GT(world.watched().compared, 0);
          EXPECT_EQ(world.watched().wrong, 0);
          EXPECT_EQ(world.unwritten(), "");
          const int32_t slot = world.scheduler().table().slot({1}, spoiled).value;
          world.spoil({1}, spoiled, part);
          world.step();
          EXPECT_EQ(world.unwritten(), cat("request 1: position ", spoiled, " in slot ", slot, "; "));
          world.step();
          EXPECT_GT(world.watched().wrong, 0);
        }
}

// Passes read every slot of their own text, and none of another's: keys and values of each, while they are no numbers,
// change the drafts of that text alone.
TEST_F(EagleDraftsTest, EverySlotOfATextIsReadAndNoOther) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  const auto same = [](const std::vector<DraftToken>& a, const std::vector<DraftToken>& b) {
    return std::ranges::equal(a, b, [](const DraftToken& x, const DraftToken& y) {
      return x.token == y.token && x.hit == y.hit && x.back == y.back;
    });
  };
  for (const int32_t page_size : {1, 16, 64})
    for (const int32_t topk : {1, 3}) {
      SCOPED_TRACE(cat("pages of ", page_size, ", topk ", topk));
      HeadWorld world(target, &head, {.page_size = page_size, .topk = topk, .steps = 3}, exec_);
      for (uint64_t seed = 0; seed < 2; ++seed)
        world.add(drawn(random_text(19 + 14 * static_cast<int32_t>(seed), seed), 20, 0));
      int64_t probed = 0, unread = 0, strange = 0;
      world.watched().probe = [&](std::span<const DraftsWanted> wanted) {
        const auto whole = world.watched().drafts_of(wanted);
        for (size_t i = 0; i < wanted.size(); ++i)
          for (int32_t position = 0; position <= wanted[i].position; ++position)
            for (const HeadWorld::Part part : {HeadWorld::Part::keys, HeadWorld::Part::values})
              world.while_spoilt(wanted[i].row, position, part, [&] {
                const auto drafts = world.watched().drafts_of(wanted);
                ++probed;
                unread += same(drafts[i], whole[i]);
                for (size_t other = 0; other < wanted.size(); ++other)
                  strange += other != i && !same(drafts[other], whole[other]);
              });
      };
      for (int i = 0; i < 4; ++i) world.step();
      EXPECT_GT(probed, 2 * (19 + 33)) << "both texts at once, at least once";
      EXPECT_EQ(unread, 0);
      EXPECT_EQ(strange, 0);
      EXPECT_EQ(world.watched().wrong, 0);
      EXPECT_EQ(world.unwritten(), "");
    }
}

TEST_F(EagleDraftsTest, AFoundPrefixNeedsTheFeaturesOfItsLastToken) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const bool spoiled : {false, true}) {
    HeadWorld world(target, &head, {}, exec_);
    world.finish(drawn(random_text(40, 1), 2, 0));
    ASSERT_EQ(world.watched().wrong, 0);
    if (spoiled)
      for (int32_t page = 0; page < world.scheduler().pool().pages(); ++page)
        std::ranges::fill(world.drafts().features_of({page}), 0.0f);
    Text longer = random_text(40, 1);
    longer.push_back(7);
    world.finish(drawn(longer, 10, 0));
    EXPECT_GT(world.scheduler().counters().cached_prompt_tokens, 0);
    EXPECT_EQ(world.watched().wrong > 0, spoiled);
  }
}

// What the head has computed nothing of is nothing that it may read: one request computes it again, in the same pages,
// and whoever comes then finds it whole.
TEST_F(EagleDraftsTest, WhoBeginsWithPagesOfThoseThatAreNotFollowedComputesThemAgain) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t page_size : {1, 16, 64}) {
    SCOPED_TRACE(page_size);
    HeadWorld plain(target, nullptr, {}, exec_), world(target, &head, {.page_size = page_size}, exec_);
    Request first = drawn(random_text(20, 1), 60, 0);
    first.speculative = false;
    const HeadWorld::Heard heard = world.finish(first);
    EXPECT_EQ(world.followed_steps, 0);
    Text text = random_text(20, 1);
    text.insert(text.end(), heard.tokens.begin(), heard.tokens.end());
    const Request second = drawn(text, 10, 0);
    const HeadWorld::Heard alone = plain.finish(second);
    for (const bool again : {true, false}) {
      world.again = world.watched().compared = 0;
      const int64_t cached = world.scheduler().counters().cached_prompt_tokens;
      EXPECT_EQ(world.finish(second).tokens, alone.tokens);
      EXPECT_EQ(world.scheduler().counters().cached_prompt_tokens - cached >= 64, !again);
      EXPECT_EQ(world.again >= 64, again);
      EXPECT_EQ(world.again > 0, again);
      EXPECT_GT(world.watched().compared, 0);
      EXPECT_EQ(world.watched().wrong, 0);
    }
  }
}

// Two pages have slots, and what was found behind them has none.
TEST_F(EagleDraftsTest, OnlyWhatHasNoSlotsIsComputedAgain) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {}, exec_);
  const Text text = random_text(100, 1);
  world.finish(drawn(Text(text.begin(), text.begin() + 40), 1, 0));
  Request unfollowed = drawn(text, 1, 0);
  unfollowed.speculative = false;
  world.finish(unfollowed);
  EXPECT_EQ(world.scheduler().counters().cached_prompt_tokens, 32);
  world.finish(drawn(text, 10, 0));
  EXPECT_EQ(world.scheduler().counters().cached_prompt_tokens, 64);
  EXPECT_EQ(world.again, 64) << "of 96 that were found";
  EXPECT_GT(world.watched().compared, 0);
  EXPECT_EQ(world.watched().wrong, 0);
}

// Somebody reads the pages while they are computed again; somebody waits until they are; and one whose turn is sooner
// does neither, since two would write to them.
TEST_F(EagleDraftsTest, OneAtATimeComputesAPageAgain) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const bool is_cancelled : {false, true}) {
    SCOPED_TRACE(is_cancelled);
    HeadWorld plain(target, nullptr, {}, exec_);
    HeadWorld world(target, &head, {.prefill_chunk = 24, .mixed_chunk = 24}, exec_);
    Request unfollowed = drawn(random_text(200, 1), 30, 0), sooner = drawn(random_text(200, 1), 30, 0);
    const Request request = sooner;
    unfollowed.speculative = false;
    sooner.priority = 1;
    const HeadWorld::Heard alone = plain.finish(request);
    world.finish(unfollowed);
    const RequestId reads = world.add(unfollowed);
    world.step();
    const RequestId again = world.add(request);
    for (int i = 0; i < 50 && world.again < 10; ++i) world.step();
    ASSERT_GE(world.again, 10);
    ASSERT_LT(world.heard(reads).tokens.size(), 30u);
    const RequestId ahead = world.add(sooner), waits = world.add(request);
    while (world.heard(ahead).tokens.empty()) world.step();
    ASSERT_LT(world.again, 192);
    const int64_t half = world.again % 16;
    if (is_cancelled) world.cancel(again);
    while (world.busy()) world.step();
    EXPECT_EQ(world.again, 192 + (is_cancelled ? half : 0)) << "each page once, but for one that was left half-way";
    for (const RequestId id : {reads, ahead, waits}) {
      EXPECT_EQ(world.heard(id).tokens, alone.tokens);
      EXPECT_EQ(world.heard(id).logprobs, alone.logprobs);
    }
    EXPECT_EQ(world.heard(ahead).speculated.verifications, 0);
    EXPECT_GT(world.heard(waits).speculated.verifications, 0);
    EXPECT_EQ(world.heard(again).speculated.verifications > 0, !is_cancelled);
    EXPECT_EQ(world.watched().wrong, 0);
  }
}

// A long prefix, which takes six times what an answer gains: so many do without, and no more. What was missed of other
// texts counts for nothing.
TEST_F(EagleDraftsTest, WhatIsLongIsComputedAgainWhenItWasMissedOftenEnough) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {}, exec_);
  const auto begin = [&] {
    Request unfollowed = drawn(random_text(290, 1), 4, 0);
    unfollowed.speculative = false;
    const RequestId id = world.add(unfollowed);
    world.step_time = std::chrono::seconds(30);
    while (world.heard(id).tokens.empty()) world.step();
    world.step_time = std::chrono::seconds(1);
    while (world.busy()) world.step();
  };
  const auto find = [&] {
    world.finish(drawn(random_text(290, 1), 2, 0));
    return world.again > 0;
  };
  for (int text = 0; text < 3; ++text) {
    begin();
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(find());
    world.scheduler().flush_cache();
  }
  begin();
  int missed = 0;
  while (missed < 100 && !find()) ++missed;
  EXPECT_GE(missed, 5);
  EXPECT_LE(missed, 7);
  EXPECT_EQ(world.again, 288);
  EXPECT_TRUE(find());
  EXPECT_EQ(world.again, 288) << "once";
  EXPECT_EQ(world.watched().wrong, 0);
}

// One that guesses wrong, and takes half as long as the target, is tried and left; another request begins without it.
TEST_F(EagleDraftsTest, AHeadThatDoesNotPayFollowsNobody) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld plain(target, nullptr, {}, exec_), world(target, &head, {}, exec_);
  world.step_time = std::chrono::seconds(10);  // beside which real passes are nothing
  world.following_time = std::chrono::seconds(5);
  const Request request = drawn(random_text(20, 1), 200, 0), other = drawn(random_text(20, 2), 50, 0);
  EXPECT_EQ(world.finish(request).tokens, plain.finish(request).tokens);
  EXPECT_GE(world.followed_steps, 4);
  EXPECT_LE(world.followed_steps, 40);
  const int64_t followed = world.followed_steps;
  EXPECT_EQ(world.finish(other).tokens, plain.finish(other).tokens);
  EXPECT_EQ(world.followed_steps, followed);
}

// What nobody tries is not learned.
TEST_F(EagleDraftsTest, AHeadThatDoesNotPayIsTriedNowAndThen) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {}, exec_);
  world.step_time = std::chrono::seconds(10);
  world.following_time = std::chrono::seconds(5);
  world.finish(drawn(random_text(20, 1), 200, 0));
  std::vector<int64_t> followed;
  for (int32_t i = 0; i < FollowBudget::kProbe; ++i) {
    const int64_t before = world.followed_steps;
    world.finish(drawn(random_text(20, 100 + i), 60, 0));
    followed.push_back(world.followed_steps - before);
  }
  const int64_t most = *std::ranges::max_element(followed);
  EXPECT_GE(most, FollowBudget::kTried);
  EXPECT_LE(most, FollowBudget::kTried + 2) << "its prompt, and the step that finds it out";
  EXPECT_EQ(std::ranges::count(followed, 0), FollowBudget::kProbe - 1);
  EXPECT_EQ(world.watched().wrong, 0);
}

// Its own page goes back where the tree has another of the same tokens: one that the head knows nothing of.
TEST_F(EagleDraftsTest, WhoGetsAPageOfSomebodyThatIsNotFollowedIsLeft) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t page_size : {16, 64}) {
    SCOPED_TRACE(page_size);
    HeadWorld plain(target, nullptr, {}, exec_, Dtype::f32);
    HeadWorld world(target, &head, {.page_size = page_size}, exec_, Dtype::f32);
    Request alone = drawn(random_text(10, 1), 200, 0);
    alone.speculative = false;
    const RequestId first = world.add(alone);
    while (world.heard(first).tokens.size() < 100) world.step();
    const HeadWorld::Heard expected = plain.finish(alone), heard = world.finish(drawn(random_text(10, 1), 200, 0));
    EXPECT_EQ(heard.tokens, expected.tokens);
    EXPECT_EQ(heard.logprobs, expected.logprobs);
    EXPECT_GT(heard.speculated.verifications, 0);
    EXPECT_LT(world.followed_steps, 40);
    EXPECT_EQ(world.watched().wrong, 0);
  }
}

TEST_F(EagleDraftsTest, AHeadThatPaysFollowsToTheEnd) {
  const TinyFile file(target_without_memory(1));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 1));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {}, exec_, Dtype::f32);
  world.step_time = std::chrono::seconds(10);  // beside which real passes are nothing
  world.following_time = std::chrono::seconds(5);
  const HeadWorld::Heard heard = world.finish(drawn(random_text(30, 3), 250, 0));
  EXPECT_GT(heard.speculated.accept_length(), 2);
  EXPECT_EQ(world.followed_steps, world.steps);
}

}  // namespace
}  // namespace quire::engine
