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
#include <random>
#include <set>

#include "engine/cpu_steps.h"
#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::engine {
namespace {

using model::testing::HeadWriter;
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
    model::testing::Requests requests(target_, exec_,
                                      {.rows = 512, .kv_type = kv_type_, .features = &head_.features()});
    std::vector<std::vector<float>> states(1, std::vector<float>(head_.spec().width));
    if (text.size() > 1) requests.extend(0, std::span(text).first(text.size() - 1));
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      const float* row = requests.forward().features().row(static_cast<int64_t>(i));
      states.emplace_back(row, row + head_.spec().width);
    }
    model::testing::HeadSlots slots(head_, exec_, PageSize(16), kv_type_);
    slots.run(attn::Mode::draft_extend, text, states);
    std::vector<DraftToken> drafts = {said(slots.logits(std::ssize(text) - 1))};
    std::vector<float> state = slots.state(std::ssize(text) - 1);
    while (drafts.size() < count) {
      slots.run(attn::Mode::decode, {&drafts.back().token, 1}, {&state, 1});
      drafts.push_back(said(slots.logits(0)));
      state = slots.state(0);
    }
    return drafts;
  }

 private:
  DraftToken said(const std::vector<float>& logits) {
    const ops::SamplingParams likeliest{.temperature = 0};
    const ops::Sampled sampled =
        sampler_.sample({.logits = logits.data(), .params = &likeliest, .position = 0, .top_logprobs = 0}, 0);
    return {.token = head_.token_ids()[sampled.token], .hit = std::exp(sampled.logprob)};
  }

  const model::Model& target_;
  const model::EagleHead& head_;
  Dtype kv_type_;
  Exec& exec_;
  ops::Sampler sampler_;
};

// Stands between the scheduler and the head, and holds what the head says against what it says of the text alone.
class WatchedDrafts final : public DraftModel {
 public:
  WatchedDrafts(EagleDrafts& drafts, const model::Model& target, const model::EagleHead& head, Dtype kv_type,
                Exec& exec)
      : drafts_(drafts), alone_(target, head, kv_type, exec) {}
  DraftToken first(RequestRow row) const override { return drafts_.first(row); }
  int32_t draft(std::span<const DraftsWanted> wanted) override {
    before_drafts();
    for (const DraftsWanted& each : wanted) poison_behind(each.row, texts.at(each.row.value));
    const int32_t passes = drafts_.draft(wanted);
    for (const DraftsWanted& each : wanted)
      if (compares) compare(each);
    return passes;
  }

  std::map<int32_t, Text> texts;  // of request rows
  std::function<void()> before_drafts;
  std::function<void(RequestRow, const Text&)> poison_behind;
  int64_t compared = 0, wrong = 0;
  bool compares = true;

 private:
  void compare(const DraftsWanted& of) {
    const Text& text = texts.at(of.row.value);
    EXPECT_EQ(of.position, std::ssize(text) - 1);
    if (of.drafts->empty()) return;
    const std::vector<DraftToken> expected = alone_.chain(text, of.drafts->size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ++compared;
      const bool same = (*of.drafts)[i].token == expected[i].token && (*of.drafts)[i].hit == expected[i].hit;
      wrong += !same;
    }
  }

  EagleDrafts& drafts_;
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
};

constexpr int32_t kMostText = 300;

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
                .draft_model = head != nullptr},
        scheduler_(limits_, {}, PrefillBudget(given.mixed_chunk), DraftBudget(limits_.drawn_rows(), 0, 0)),
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
    watched_ = std::make_unique<WatchedDrafts>(*drafts_, target, *head, kv_type, exec);
    watched_->before_drafts = [this] { poison_free_pages(); };
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
    Step step{.batch = scheduler_.plan()};
    if (step.batch.empty()) return;
    scheduler_.advance(step.batch);
    poison_free_pages();
    for (const Share& share : step.batch.shares)
      if (watched_ && !share.prefills) poison_behind(share.row, watched_->texts.at(share.row.value));
    device_.launch(step);
    step.results.time = {};
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

  // Makes one slot's keys of an open row no numbers, as if it had never been written.
  void spoil(RequestRow row, int32_t position) { spoil(scheduler_.table().slot(row, position)); }

 private:
  // The text of each row as the head has it after this step.
  void follow(const Step& step) {
    for (const Share& share : step.batch.shares) {
      Text& text = watched_->texts[share.row.value] = texts_.at(share.id);
      if (!share.draws) continue;
      for (int32_t i = 0; i < share.drawn.count; ++i)
        for (const ops::Sampled& sampled : step.results.drawn[share.drawn.begin + i].tokens)
          text.push_back(sampled.token);
    }
  }
  void spoil(TokenSlot slot) {
    const kv::LayerKv layer = drafts_->store().layer(0);
    const auto bytes = static_cast<int64_t>(size_of(layer.type));
    std::memset(layer.keys + slot.value * layer.key_stride * bytes, 0xff, layer.key_stride * bytes);
    std::memset(layer.values + slot.value * layer.value_stride * bytes, 0xff, layer.value_stride * bytes);
  }
  void poison_free_pages() {
    if (!drafts_) return;
    const kv::PagePool& pool = scheduler_.pool();
    for (int32_t page = 0; page < pool.pages(); ++page) {
      if (page > 0 && pool.references({page}) > 0) continue;
      for (int32_t i = 0; i < limits_.page_size.tokens(); ++i) spoil(limits_.page_size.slot({page}, i));
      std::ranges::fill(drafts_->features_of({page}), std::numeric_limits<float>::quiet_NaN());
    }
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
  std::map<RequestId, Text> texts_;
  std::map<RequestId, Heard> heard_;
  RequestId last_id_ = 0;
};

// --- a target that says the next token by the newest alone, and a head that does the same

TinyModel target_without_memory(float certain, int32_t vocabulary = 320) {
  return {.layers = 6, .vocabulary = vocabulary, .change = [certain, vocabulary](model::testing::GgufWriter& gguf) {
            for (int layer = 0; layer < 6; ++layer) {
              gguf.tensor(cat("blk.", layer, ".attn_output.weight"), BlockType::f32, {64, 64},
                          std::vector<std::byte>(size_t{64} * 64 * 4));
              gguf.tensor(cat("blk.", layer, ".ffn_down.weight"), BlockType::f32, {64, 96},
                          std::vector<std::byte>(size_t{64} * 96 * 4));
            }
            std::mt19937_64 random(5);
            for (const auto& [name, spread] : {std::pair{"token_embd.weight", 1.0f}, {"output.weight", certain}})
              gguf.tensor(name, BlockType::f32, {vocabulary, 64},
                          model::testing::random_weights(BlockType::f32, vocabulary * 64, spread, random));
          }};
}

std::vector<float> numbers_of(const model::Vector& vector) { return {vector.data(), vector.data() + vector.size()}; }

// Attention that finds its own slot, or one of the same token (normed rows have one length: none is nearer to it than
// itself), hands that token's embedding on; the target's own last norm and output matrix do the rest. `certain` is the
// spread of the target's matrix.
HeadWriter knowing_head(const model::Model& target, float certain) {
  const int32_t vocabulary = target.config().vocabulary;
  HeadWriter head = tiny_head(
      target, {.draft_vocabulary = vocabulary, .heads = 1, .kv_heads = 1, .head_dim = 64, .feature_layers = {2, 3, 5}});
  const auto picks = [](float scale) {  // of [ embedding | state ] the embedding
    std::vector<float> matrix(size_t{64} * 128);
    for (int i = 0; i < 64; ++i) matrix[i * 128 + i] = scale;
    return matrix;
  };
  head.set_matrix("midlayer.self_attn.q_proj.weight", 64, picks(8));
  head.set_matrix("midlayer.self_attn.k_proj.weight", 64, picks(8));
  head.set_matrix("midlayer.self_attn.v_proj.weight", 64, picks(1));
  std::vector<float> identity(size_t{64} * 64);
  for (int i = 0; i < 64; ++i) identity[i * 64 + i] = 2000;
  head.set_matrix("midlayer.self_attn.o_proj.weight", 64, identity);
  head.set_matrix("midlayer.mlp.down_proj.weight", 64, std::vector<float>(size_t{64} * 96));
  head.set_vector("midlayer.input_layernorm.weight", std::vector<float>(64, 1.0f));
  head.set_vector("norm.weight", numbers_of(target.output_norm()));
  std::mt19937_64 random(5);
  model::testing::random_weights(BlockType::f32, vocabulary * 64, 1.0f, random);
  const auto bytes = model::testing::random_weights(BlockType::f32, vocabulary * 64, certain, random);
  std::vector<float> output(bytes.size() / sizeof(float));
  std::memcpy(output.data(), bytes.data(), bytes.size());
  head.set_matrix("lm_head.weight", vocabulary, output);
  return head;
}

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
  for (const int32_t page_size : {1, 16, 64}) {
    SCOPED_TRACE(page_size);
    const WorldLimits limits{.page_size = page_size, .drafts = 5};
    HeadWorld plain(target, nullptr, limits, exec_, Dtype::f32), drafting(target, &head, limits, exec_, Dtype::f32);
    const Request request = drawn(random_text(30, 3), 120, 0);
    const HeadWorld::Heard alone = plain.finish(request), heard = drafting.finish(request);
    EXPECT_EQ(heard.tokens, alone.tokens);
    EXPECT_EQ(heard.logprobs, alone.logprobs);
    EXPECT_GT(heard.speculated.accept_length(), 5.8);  // of 6
    EXPECT_GT(heard.speculated.accept_rate(), 0.99);
    EXPECT_EQ(drafting.watched().wrong, 0);
  }
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

// Tokens that were drawn with drafts beside them, held against what the target says follows each token: chi-square over
// all pairs that are expected five times or more.
TEST_F(EagleDraftsTest, DrawnTokensHaveTheTargetsDistribution) {
  constexpr int32_t kTokens = 8;
  const TinyFile file(target_without_memory(0.15f, kTokens));
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(knowing_head(target, 0.15f));
  const model::EagleHead head(head_file.path(), target, exec_);
  std::array<std::array<double, kTokens>, kTokens> likely{}, drawn_pairs{};
  for (int32_t token = 0; token < kTokens; ++token) {
    Request request = drawn({token}, 1, 1);
    request.top_logprobs = kTokens;
    const HeadWorld::Heard heard = HeadWorld(target, nullptr, {}, exec_).finish(request);
    for (const auto& [next, logprob] : heard.top[0]) likely[token][next] = std::exp(logprob);
  }
  HeadWorld world(target, &head, {}, exec_);
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

// --- random schedules

class RandomWorld {
 public:
  RandomWorld(const model::Model& target, const model::EagleHead& head, uint32_t seed, Exec& exec)
      : target_(target), head_(head), random_(seed), exec_(exec) {
    for (int i = 0; i < 2; ++i) themes_.push_back(random_text(kMostText, random_()));
  }

  void run() {
    const int32_t page_sizes[] = {1, 16, 64};
    const WorldLimits limits{.page_size = page_sizes[below(3)],
                             .pool_tokens = kMostText + below(below(3) ? kMostText / 4 : 4 * kMostText),
                             .running = 1 + below(6),
                             .prefill_chunk = 1 + below(64),
                             .mixed_chunk = 1 + below(32),
                             .prefix_cache = below(5) > 0,
                             .drafts = 1 + below(6)};
    SCOPED_TRACE(cat(limits.pool_tokens, " tokens in pages of ", limits.page_size, ", running ", limits.running,
                     ", chunks ", limits.prefill_chunk, " and ", limits.mixed_chunk, ", drafts ", limits.drafts));
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
    compared += world.watched().compared;
    retractions += world.scheduler().counters().retractions;
    cached += world.scheduler().counters().cached_prompt_tokens;
    correct += world.scheduler().counters().speculated.correct;
  }

  int64_t compared = 0, retractions = 0, cached = 0, correct = 0;

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
  std::mt19937 random_;
  Exec& exec_;
  std::vector<Text> themes_;
};

struct HeadKind {
  const char* name;
  TinyModel target;
  TinyHead head;
  bool knows = false;
};

std::ostream& operator<<(std::ostream& out, const HeadKind& kind) { return out << kind.name; }

class EagleSchedules : public ::testing::TestWithParam<HeadKind> {};

TEST_P(EagleSchedules, SayOfATextWhatTheyDoAloneAndChangeNobodysOutput) {
  Exec exec{{.threads = 2}};
  const TinyFile file(GetParam().target);
  const model::Model target(file.path(), exec);
  const TinyHeadFile head_file(GetParam().knows ? knowing_head(target, 1) : tiny_head(target, GetParam().head));
  const model::EagleHead head(head_file.path(), target, exec);
  int64_t compared = 0, retractions = 0, cached = 0, correct = 0;
  for (uint32_t seed = 0; seed < 6 && !HasFailure(); ++seed) {
    SCOPED_TRACE(cat("seed ", seed));
    RandomWorld world(target, head, seed, exec);
    world.run();
    compared += world.compared;
    retractions += world.retractions;
    cached += world.cached;
    correct += world.correct;
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(retractions, 0);
  EXPECT_GT(cached, 200);
  if (GetParam().knows) {
    EXPECT_GT(correct, 500);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , EagleSchedules,
    ::testing::Values(HeadKind{"Random", {}, {}},
                      HeadKind{"Quantised", {.type = BlockType::q8_0}, {.type = BlockType::q4_1, .norm_output = false}},
                      HeadKind{"Knowing", target_without_memory(1), {}, true}),
    [](const auto& parameter) { return parameter.param.name; });

// --- the checks themselves

// One slot that was not written, or whose features were not kept, must show.
TEST_F(EagleDraftsTest, AnUnwrittenSlotShows) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  for (const int32_t spoiled : {0, 17, 34}) {
    SCOPED_TRACE(spoiled);
    HeadWorld world(target, &head, {}, exec_);
    world.add(drawn(random_text(35, 1), 20, 0));
    for (int i = 0; i < 4; ++i) world.step();
    EXPECT_GT(world.watched().compared, 0);
    EXPECT_EQ(world.watched().wrong, 0);
    world.spoil({1}, spoiled);
    for (int i = 0; i < 2; ++i) world.step();
    EXPECT_GT(world.watched().wrong, 0);
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

// A request for which nothing is drafted leaves pages behind that are whole for the head.
TEST_F(EagleDraftsTest, PagesOfThoseThatDoNotSpeculateAreWholeToo) {
  const TinyFile file{{}};
  const model::Model target(file.path(), exec_);
  const TinyHeadFile head_file(tiny_head(target));
  const model::EagleHead head(head_file.path(), target, exec_);
  HeadWorld world(target, &head, {}, exec_);
  Request first = drawn(random_text(20, 1), 60, 0);
  first.speculative = false;
  const HeadWorld::Heard heard = world.finish(first);
  EXPECT_EQ(world.watched().compared, 0);
  Text text = random_text(20, 1);
  text.insert(text.end(), heard.tokens.begin(), heard.tokens.end());
  world.finish(drawn(text, 10, 0));
  EXPECT_GE(world.scheduler().counters().cached_prompt_tokens, 64);
  EXPECT_GT(world.watched().compared, 0);
  EXPECT_EQ(world.watched().wrong, 0);
}

}  // namespace
}  // namespace quire::engine
