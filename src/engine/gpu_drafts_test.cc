// A head on a GPU beside the same head on the CPU: features, first drafts and chains; and, where it is deterministic,
// the same bits whatever is computed beside a text. Slots of the head's that nobody may read are no numbers: of free
// pages, of branches, and behind what was computed of each text.
#include "engine/gpu_drafts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>

#include "base/cuda.h"
#include "engine/draft_tree.h"
#include "engine/eagle_drafts.h"
#include "engine/engine.h"
#include "engine/gpu_steps.h"
#include "engine/testing_schedules.h"
#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::engine {
namespace {

using model::testing::random_ids;
using model::testing::TinyFile;
using model::testing::TinyHead;
using model::testing::TinyHeadFile;
using model::testing::TinyModel;
using Chain = std::vector<DraftToken>;

constexpr int32_t kContext = 256, kMostDrafts = 5, kTreeDrafts = 20;

SchedulerLimits limits_of(PageSize page_size, int32_t topk) {
  return {.context = kContext,
          .pages = page_size.pages_for(8 * kContext),
          .page_size = page_size,
          .running = 6,
          .prefill_chunk = 96,
          .mixed_chunk = 96,
          .prefix_cache = false,
          .drafts = topk > 1 ? kTreeDrafts : kMostDrafts,
          .topk = topk,
          .draft_steps = kMostDrafts,
          .draft_model = true};
}

// Makes no numbers of a head's keys and values in a GPU's memory, behind what its stream was given before.
class SlotPoison {
 public:
  enum class Part : uint8_t { both, keys, values };

  explicit SlotPoison(const kv::KvStore& store)
      : layer_(store.layer(0)),
        poison_(
            static_cast<size_t>(layer_.slots * std::max(layer_.key_stride, layer_.value_stride) * size_of(layer_.type)),
            Place::pinned) {
    std::ranges::fill(poison_.bytes(), std::byte{0xff});
  }
  int64_t slots() const { return layer_.slots; }
  void spoil(int64_t begin, int64_t end, cuda::Stream& stream, Part part = Part::both) const {
    const auto fill = [&](std::byte* rows, int64_t stride) {
      const int64_t bytes = stride * size_of(layer_.type);
      stream.copy(rows + begin * bytes, poison_.data(), static_cast<size_t>((end - begin) * bytes));
    };
    if (begin >= end) return;
    if (part != Part::values) fill(layer_.keys, layer_.key_stride);
    if (part != Part::keys) fill(layer_.values, layer_.value_stride);
  }
  // readable: [slots]
  void spoil_all_but(const std::vector<bool>& readable, cuda::Stream& stream) const {
    for (int64_t begin = 0, end; begin < slots(); begin = end) {
      for (end = begin + 1; end < slots() && readable[end] == readable[begin]; ++end) {
      }
      if (!readable[begin]) spoil(begin, end, stream);
    }
  }

 private:
  kv::LayerKv layer_;
  Buffer poison_;
};

// One device's runner and head. A text is a request; its tokens are what the test says that was drawn.
class Drafting {
 public:
  Drafting(const std::string& model, const std::string& head, cuda::Stream* stream, bool deterministic,
           PageSize page_size, int32_t topk)
      : limits_(limits_of(page_size, topk)),
        exec_({.threads = 2, .stream = stream}),
        model_(model, exec_),
        head_(head, model_, exec_),
        pool_(limits_.pages + 1, page_size),
        table_(pool_, limits_.running + 1, kContext),
        runner_(model_, limits_, Dtype::bf16, table_, exec_, nullptr, deterministic, &head_.features()),
        drawn_(limits_.wanted_rows() * sizeof(int32_t), stream ? Place::device : Place::host) {
    if (stream) {
      on_gpu_.emplace(head_, limits_, Dtype::bf16, table_, runner_, reinterpret_cast<const int32_t*>(drawn_.data()),
                      deterministic, exec_);
      poison_.emplace(on_gpu_->store());
    } else
      on_cpu_.emplace(head_, limits_, Dtype::bf16, table_, exec_);
  }

  int32_t passes = kMostDrafts - 1;  // behind each step

  struct Text {
    std::vector<int32_t> tokens;
    RequestRow row;
    int32_t computed = 0;
    bool drafted = false;
    std::shared_ptr<const Request> request = std::make_shared<const Request>();
    DraftRecord record{std::make_shared<DraftRates>()};
  };
  Text& text(uint64_t seed) {
    Text& text = texts_.emplace_back(random_ids(kContext, model_.config().vocabulary, seed), table_.open());
    EXPECT_TRUE(table_.reserve(text.row, {kContext}));
    return text;
  }

  // The next `count` tokens, of which the last `drafts` are drafts that come, and `wrong` more that do not; behind them
  // a token is drawn, or the text is a prompt that goes on. late: there should be a token, and there is none. branches:
  // beside each draft that comes stands one that does not, before it.
  struct Part {
    Text* text;
    int32_t count;
    bool draws = true;
    int32_t drafts = 0;
    int32_t wrong = drafts > 0 ? 1 : 0;
    bool late = false;
    bool followed = true;
    bool branches = false;
  };
  // Features of the step's rows.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
    Batch batch;
    StepResults results;
    std::vector<int32_t> drawn;
    for (const Part& part : parts) {
      Text& text = *part.text;
      const int32_t known = text.computed + part.count - part.drafts;
      const std::vector<Draft> drafts = drafts_of(part, known);
      const auto all = static_cast<int32_t>(drafts.size());
      std::vector<DraftToken> tokens;
      for (const Draft& draft : drafts) tokens.push_back(draft.said);
      const int32_t rows = part.count - part.drafts + all, end = text.computed + rows;
      batch.add({.id = 1,
                 .row = text.row,
                 .position = text.computed,
                 .count = rows,
                 .drafts = all,
                 .prefills = !part.draws,
                 .draws = part.draws,
                 .followed = part.followed,
                 .drafted = text.drafted,
                 .passes = part.draws && part.followed && end + kMostDrafts <= kContext ? passes : 0,
                 .request = text.request},
                std::span(text.tokens).first(known), tokens);
      if (!part.draws) continue;
      for (int32_t i = 0; i <= all; ++i) {
        RowResult& row = results.drawn.emplace_back();
        const int32_t depth = i == 0 ? 0 : drafts[i - 1].depth;
        const bool counts = (i == 0 || drafts[i - 1].comes) && !part.late;
        if (counts) row.tokens.push_back({.token = text.tokens[known + depth]});
        // Behind a draft that did not come each next one would.
        drawn.push_back(part.late ? -1 : counts ? text.tokens[known + depth] : i < all ? tokens[i].token : 5);
      }
    }
    if (on_gpu_) poison_unreadable();
    const Rows<const float> features = runner_.run(batch).features;
    std::vector<std::vector<float>> rows;
    for (int32_t i = 0; i < batch.rows(); ++i) rows.push_back(copied(features.row(i), features.dim));
    if (on_gpu_) {
      if (!drawn.empty())
        exec_.stream()->copy(drawn_.data(), reinterpret_cast<const std::byte*>(drawn.data()),
                             drawn.size() * sizeof(int32_t));
      on_gpu_->follow(batch);
      exec_.wait();
    } else {
      runner_.keep_path(batch, results);
      on_cpu_->extend(batch, results, features);
    }
    for (const Part& part : parts) {
      part.text->computed += part.count - part.late;
      part.text->drafted = part.draws && part.followed;
    }
    return rows;
  }

  // On a GPU, from the next step on, as if a slot of the text's had not been written.
  void spoil(const Text& text, int32_t position, SlotPoison::Part part) {
    spoilt_.push_back({table_.slot(text.row, position), part});
  }

  std::span<const PageId> all_pages_of(const Text& text) const { return table_.pages(text.row); }
  // Those that are full.
  std::span<const PageId> pages_of(const Text& text) const {
    return all_pages_of(text).first(static_cast<size_t>(std::max(1, text.computed / limits_.page_size.tokens())));
  }
  DraftModel& drafts() { return on_gpu_ ? static_cast<DraftModel&>(*on_gpu_) : *on_cpu_; }
  std::vector<Chain> chains(const std::vector<Text*>& of, int32_t most = kMostDrafts) {
    std::vector<Chain> chains(of.size());
    std::vector<RequestRow> rows;
    for (const Text* text : of) rows.push_back(text->row);
    drafts().catch_up(rows);
    std::vector<DraftsWanted> wanted;
    for (size_t i = 0; i < of.size(); ++i)
      wanted.push_back({.row = of[i]->row,
                        .position = of[i]->computed,
                        .most = most,
                        .least = 0,
                        .record = &of[i]->record,
                        .drafts = &chains[i]});
    drafts().draft(wanted);
    for (const Chain& chain : chains)
      for (const DraftToken& draft : chain)
        EXPECT_TRUE(!spoilt_.empty() || draft.hit > 0) << "of a slot that was not written";
    return chains;
  }

 private:
  // The head has slots of the tokens that were computed and of the one that was drawn.
  void poison_unreadable() {
    std::vector<bool> readable(static_cast<size_t>(poison_->slots()));
    for (const Text& text : texts_)
      for (int32_t position = 0; position < std::min(text.computed + (text.drafted ? 1 : 0), kContext); ++position)
        readable[table_.slot(text.row, position).value] = true;
    poison_->spoil_all_but(readable, *exec_.stream());
    for (const Spoilt& each : spoilt_) poison_->spoil(each.slot.value, each.slot.value + 1, *exec_.stream(), each.part);
  }

  struct Draft {
    DraftToken said;
    int32_t depth;
    bool comes;
  };
  static std::vector<Draft> drafts_of(const Part& part, int32_t known) {
    const std::vector<int32_t>& text = part.text->tokens;
    std::vector<Draft> drafts;
    for (int32_t depth = 1; depth <= part.drafts + part.wrong; ++depth) {
      const bool comes = depth <= part.drafts;
      const int32_t right = text[known + depth - 1], wrong = (right + 1) % 320;
      // A draft that came stands right before these, and above that one's sibling.
      if (part.branches && comes) drafts.push_back({.said = {wrong, 0.25f, 1}, .depth = depth, .comes = false});
      const int32_t back = part.branches && comes ? 2 : 1;
      drafts.push_back({.said = {comes ? right : wrong, 0.5f, back}, .depth = depth, .comes = comes});
    }
    return drafts;
  }

  std::vector<float> copied(const float* from, int64_t count) {
    const Buffer pinned(static_cast<size_t>(count) * sizeof(float), exec_.stream() ? Place::pinned : Place::host);
    if (exec_.stream())
      exec_.stream()->copy(pinned.data(), reinterpret_cast<const std::byte*>(from), pinned.size());
    else
      std::copy_n(from, count, reinterpret_cast<float*>(pinned.data()));
    exec_.wait();
    return {reinterpret_cast<const float*>(pinned.data()), reinterpret_cast<const float*>(pinned.data()) + count};
  }

  SchedulerLimits limits_;
  Exec exec_;
  model::Model model_;
  model::EagleHead head_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  Runner runner_;
  Buffer drawn_;  // the device's: in place of a sampler's
  std::optional<GpuDrafts> on_gpu_;
  std::optional<EagleDrafts> on_cpu_;
  std::optional<SlotPoison> poison_;  // of the GPU's
  struct Spoilt {
    TokenSlot slot;
    SlotPoison::Part part;
  };
  std::vector<Spoilt> spoilt_;
  std::deque<Text> texts_;
};

struct Kind {
  const char* name;
  BlockType type;
  bool norm_output = true;
  int32_t page_size = 16;
};

class GpuDraftsTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_ = std::make_unique<cuda::Stream>();
    const Kind& kind = GetParam();
    const TinyModel tiny{.width = 128,
                         .ffn_width = 192,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .context = kContext,
                         .type = kind.type};
    model_file_ = std::make_unique<TinyFile>(tiny);
    Exec exec{{.threads = 2}};
    const model::Model target(model_file_->path(), exec);
    head_file_ = std::make_unique<TinyHeadFile>(model::testing::tiny_head(
        target, {.head_dim = 64,
                 .ffn_width = 160,
                 .type = kind.type,
                 .norm_output = kind.norm_output,
                 .spread = 0.08f}));  // attention that is not sure of one key: small differences stay small
  }
  std::unique_ptr<Drafting> on_gpu(bool deterministic = false, int32_t topk = 1) {
    return drafting(stream_.get(), deterministic, topk);
  }
  std::unique_ptr<Drafting> on_cpu(int32_t topk = 1) { return drafting(nullptr, false, topk); }
  std::unique_ptr<Drafting> drafting(cuda::Stream* stream, bool deterministic, int32_t topk) {
    return std::make_unique<Drafting>(model_file_->path(), head_file_->path(), stream, deterministic,
                                      PageSize(GetParam().page_size), topk);
  }

  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<TinyFile> model_file_;
  std::unique_ptr<TinyHeadFile> head_file_;
};

// Numbers are rounded to bf16, or to 8 bits, on their way.
constexpr double kLeastCosine = 0.999;
constexpr float kHitTolerance = 0.03f;

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double dot = 0, of_a = 0, of_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    dot += double{a[i]} * b[i];
    of_a += double{a[i]} * a[i];
    of_b += double{b[i]} * b[i];
  }
  return dot / std::sqrt(of_a * of_b);
}

// Drafts are the same up to one that is nearly as likely as another.
int compare(const Chain& gpu, const Chain& cpu) {
  EXPECT_EQ(gpu.size(), cpu.size());
  int same = 0;
  for (size_t i = 0; i < std::min(gpu.size(), cpu.size()); ++i) {
    EXPECT_NEAR(gpu[i].hit, cpu[i].hit, kHitTolerance) << "draft " << i;
    if (gpu[i].token != cpu[i].token) break;
    ++same;
  }
  return same;
}

// A prompt in chunks, drafts, a verification in which some came, drafts again; beside others.
TEST_P(GpuDraftsTest, FeaturesAndDraftsAreTheCpus) {
  const std::unique_ptr<Drafting> gpu = on_gpu(), cpu = on_cpu();
  std::vector<Drafting*> both{gpu.get(), cpu.get()};
  std::vector<std::vector<Drafting::Text*>> texts;
  for (Drafting* side : both) texts.push_back({&side->text(1), &side->text(2), &side->text(3)});
  int same = 0, all = 0;
  const auto step = [&](const std::function<std::vector<Drafting::Part>(const std::vector<Drafting::Text*>&)>& parts) {
    const auto on_gpu = gpu->step(parts(texts[0])), on_cpu = cpu->step(parts(texts[1]));
    ASSERT_EQ(on_gpu.size(), on_cpu.size());
    for (size_t row = 0; row < on_gpu.size(); ++row)
      EXPECT_GT(cosine(on_gpu[row], on_cpu[row]), kLeastCosine) << "row " << row;
  };
  const auto draft = [&](const std::vector<size_t>& which, int32_t most) {
    std::vector<Drafting::Text*> of_gpu, of_cpu;
    for (const size_t i : which) of_gpu.push_back(texts[0][i]), of_cpu.push_back(texts[1][i]);
    const std::vector<Chain> a = gpu->chains(of_gpu, most), b = cpu->chains(of_cpu, most);
    for (size_t i = 0; i < which.size(); ++i) {
      SCOPED_TRACE(cat("text ", which[i], ", up to ", most, " drafts"));
      ASSERT_EQ(std::ssize(a[i]), most);
      same += compare(a[i], b[i]);
      all += most;
    }
  };
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[0], 37, false}}; });
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[0], 5}, {t[1], 50, false}}; });
  draft({0}, 5);
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[0], 4, true, 3}, {t[1], 14}, {t[2], 64}}; });
  draft({0, 1, 2}, 4);
  draft({2, 0}, 1);
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[0], 1}, {t[2], 5, true, 4}}; });
  draft({2, 0}, 2);
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[1], 2, true, 1}, {t[2], 1}, {t[0], 3, true, 2}}; });
  draft({1, 0, 2}, 5);
  EXPECT_GE(same, all * 3 / 4) << "of " << all;
}

// Whole, in part and not at all, of several texts at once, whose rows lie otherwise in each step; and drafts of all
// follow, from what the device found out by itself.
TEST_P(GpuDraftsTest, TheWalkFindsWhatCame) {
  const std::unique_ptr<Drafting> gpu = on_gpu(), cpu = on_cpu();
  std::vector<std::vector<Drafting::Text*>> texts;
  for (Drafting* side : {gpu.get(), cpu.get()})
    texts.push_back({&side->text(1), &side->text(2), &side->text(3), &side->text(4)});
  struct Came {
    int32_t drafts, wrong;
  };
  const Came rounds[][4] = {{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, {{5, 0}, {0, 5}, {2, 3}, {0, 0}},
                            {{0, 1}, {5, 0}, {0, 0}, {4, 1}}, {{1, 0}, {1, 4}, {0, 5}, {3, 2}},
                            {{5, 0}, {5, 0}, {5, 0}, {5, 0}}, {{0, 5}, {0, 5}, {0, 5}, {0, 5}},
                            {{3, 0}, {0, 0}, {1, 1}, {0, 3}}};
  for (size_t side = 0; side < 2; ++side)
    (side ? cpu : gpu)->step({{texts[side][0], 17}, {texts[side][1], 30}, {texts[side][2], 9}, {texts[side][3], 31}});
  int same = 0, all = 0;
  for (const auto& round : rounds) {
    std::vector<Chain> chains[2];
    for (size_t side = 0; side < 2; ++side) {
      std::vector<Drafting::Part> parts;
      for (int i = 0; i < 4; ++i)
        parts.push_back({texts[side][i], 1 + round[i].drafts, true, round[i].drafts, round[i].wrong});
      Drafting& drafting = side ? *cpu : *gpu;
      drafting.step(parts);
      chains[side] = drafting.chains(texts[side]);
    }
    for (size_t i = 0; i < 4; ++i) {
      SCOPED_TRACE(cat("round ", &round - rounds, ", text ", i));
      ASSERT_EQ(std::ssize(chains[0][i]), kMostDrafts);
      same += compare(chains[0][i], chains[1][i]);
      all += kMostDrafts;
    }
  }
  EXPECT_GE(same, all * 2 / 3) << "of " << all;
}

// A row that gave no token is computed again, and then all is as if it had given one at once.
TEST_P(GpuDraftsTest, ALateTokenLeavesNothingBehind) {
  for (const int32_t prompt : {9, 16, 17}) {
    SCOPED_TRACE(cat("a prompt of ", prompt));
    const auto chain = [&](bool late) {
      const std::unique_ptr<Drafting> gpu = on_gpu(true);
      Drafting::Text &text = gpu->text(1), &other = gpu->text(2);
      gpu->step({{&other, 12}, {&text, prompt, true, 0, 0, late}});
      if (late) gpu->step({{&text, 1, true, 0, 0, true}, {&other, 2, true, 1}});
      if (late) gpu->step({{&text, 1, true, 0, 0, false}});
      gpu->step({{&text, 2, true, 1}});
      return gpu->chains({&text})[0];
    };
    const Chain late = chain(true), at_once = chain(false);
    ASSERT_EQ(std::ssize(late), kMostDrafts);
    for (int32_t i = 0; i < kMostDrafts; ++i) {
      EXPECT_EQ(late[i].token, at_once[i].token);
      EXPECT_EQ(std::bit_cast<uint32_t>(late[i].hit), std::bit_cast<uint32_t>(at_once[i].hit));
    }
  }
}

// Pages of a text that is not followed are nobody's to begin with; and those of one that is are, beside it.
TEST_P(GpuDraftsTest, OnlyPagesOfTextsThatAreFollowedHaveSlots) {
  const std::unique_ptr<Drafting> gpu = on_gpu();
  Drafting::Text &followed = gpu->text(1), &left = gpu->text(2);
  const auto has_slots = [&](const Drafting::Text& text) { return gpu->drafts().has_slots(gpu->pages_of(text)); };
  EXPECT_FALSE(has_slots(followed)) << "nothing was computed";
  gpu->step({{&followed, 90, false}});
  const auto begun = std::span(gpu->all_pages_of(followed)).subspan(static_cast<size_t>(90 / GetParam().page_size), 1);
  EXPECT_FALSE(gpu->drafts().has_slots(begun)) << "there is more to come of that page";
  gpu->step({{&followed, 38}, {&left, 17, true, 0, 0, false, false}});
  EXPECT_TRUE(has_slots(followed));
  EXPECT_FALSE(has_slots(left));
  gpu->step({{&followed, 1, true, 0, 0, false, false}});
  const auto page = static_cast<size_t>(128 / GetParam().page_size);
  gpu->step({{&left, 1, true, 0, 0, false, false}});
  EXPECT_FALSE(gpu->drafts().has_slots(std::span(gpu->all_pages_of(followed)).subspan(page, 1))) << "it was left there";
  EXPECT_TRUE(gpu->drafts().has_slots(std::span(gpu->all_pages_of(followed)).first(page)));
}

// Passes are those of the newest step, and of the texts whose shares want them.
TEST_P(GpuDraftsTest, WhoHasNoPassesHasTheFirstDraft) {
  const std::unique_ptr<Drafting> gpu = on_gpu();
  Drafting::Text &absent = gpu->text(1), &passing = gpu->text(2), &unfollowed = gpu->text(3);
  gpu->step({{&absent, 20}, {&passing, 30}});
  const Chain before = gpu->chains({&absent})[0];
  ASSERT_EQ(std::ssize(before), kMostDrafts);
  gpu->step({{&unfollowed, 12, true, 0, 0, false, false}, {&passing, 2, true, 1}});
  const std::vector<Chain> chains = gpu->chains({&absent, &passing});
  ASSERT_EQ(chains[0].size(), 1u);
  EXPECT_EQ(chains[0][0].token, before[0].token);
  EXPECT_EQ(std::ssize(chains[1]), kMostDrafts);
}

// In one piece alone; in chunks; beside others, in another order, where more rows are multiplied.
TEST_P(GpuDraftsTest, BitsAreATextsOwnWhereItIsDeterministic) {
  using Bits = std::vector<uint32_t>;
  const auto run = [&](bool in_chunks, bool beside) {
    const std::unique_ptr<Drafting> gpu = on_gpu(true);
    Bits bits;
    Drafting::Text *other = beside ? &gpu->text(5) : nullptr, &text = gpu->text(1),
                   *third = beside ? &gpu->text(6) : nullptr;
    const auto step = [&](Drafting::Part part, int32_t others) {
      std::vector<Drafting::Part> parts;
      if (other && others > 0) parts.push_back({other, others});
      parts.push_back(part);
      if (third && others > 1) parts.push_back({third, 1});
      const auto rows = gpu->step(parts);
      const size_t first = other && others > 0 ? others : 0;
      for (int32_t i = 0; i < part.count; ++i)
        for (const float number : rows[first + i]) bits.push_back(std::bit_cast<uint32_t>(number));
    };
    const auto draft = [&] {
      std::vector<Drafting::Text*> of;
      if (other) of.push_back(other);
      of.push_back(&text);
      if (third) of.push_back(third);
      const std::vector<Chain> chains = gpu->chains(of);
      for (const DraftToken& each : chains[other ? 1 : 0]) {
        bits.push_back(static_cast<uint32_t>(each.token));
        bits.push_back(std::bit_cast<uint32_t>(each.hit));
      }
    };
    if (in_chunks) {
      step({&text, 9, false}, 2);
      step({&text, 23, false}, 3);
      step({&text, 16}, 2);
    } else {
      if (third) gpu->step({{third, 7}});
      step({&text, 48}, 40);
    }
    draft();
    step({&text, 4, true, 3}, 2);
    draft();
    return bits;
  };
  const Bits alone = run(false, false);
  EXPECT_EQ(run(true, false), alone);
  EXPECT_EQ(run(false, true), alone);
  EXPECT_EQ(run(true, true), alone);
}

// Tokens from the text to each draft, with the chance of the last.
std::map<std::vector<int32_t>, float> paths_in(const Chain& tree) {
  std::map<std::vector<int32_t>, float> paths;
  for (int32_t i = 0; i < std::ssize(tree); ++i) {
    std::vector<int32_t> path;
    for (int32_t at = i; at >= 0; at = parent_of(tree, at)) path.insert(path.begin(), tree[at].token);
    paths[path] = tree[i].hit;
  }
  return paths;
}

// Of several texts that differ in what came before; most drafts are in both trees, and as likely.
TEST_P(GpuDraftsTest, TreesAreTheCpus) {
  for (const int32_t topk : {2, 4}) {
    SCOPED_TRACE(cat(topk, " branches"));
    const std::unique_ptr<Drafting> gpu = on_gpu(false, topk), cpu = on_cpu(topk);
    int same = 0, all = 0, deep = 0, branching = 0;
    std::vector<std::vector<Chain>> trees;
    for (Drafting* side : {gpu.get(), cpu.get()}) {
      Drafting::Text &first = side->text(1), &second = side->text(2), &third = side->text(3);
      std::vector<Chain>& of_side = trees.emplace_back();
      const auto draft = [&] {
        for (Chain& tree : side->chains({&third, &first, &second}, kTreeDrafts)) of_side.push_back(std::move(tree));
      };
      side->step({{&first, 20}, {&second, 30}, {&third, 9}});
      draft();
      side->step(
          {{&first, 4, true, 3, 2, false, true, true}, {&second, 1}, {&third, 3, true, 2, 1, false, true, true}});
      draft();
      side->step({{&second, 5, true, 4, 1, false, true, true}, {&third, 2, true, 1}, {&first, 1}});
      draft();
    }
    for (size_t i = 0; i < trees[0].size(); ++i) {
      SCOPED_TRACE(cat("tree ", i));
      const auto &of_gpu = paths_in(trees[0][i]), &of_cpu = paths_in(trees[1][i]);
      EXPECT_EQ(std::ssize(trees[0][i]), std::min(kTreeDrafts, topk + topk * topk * (kMostDrafts - 1)));
      EXPECT_EQ(of_gpu.size(), trees[0][i].size()) << "each is there once";
      branching += !is_chain(trees[0][i]);
      for (const auto& [path, hit] : of_gpu) {
        deep += path.size() > 2;
        ++all;
        const auto found = of_cpu.find(path);
        if (found == of_cpu.end()) continue;
        ++same;
        EXPECT_NEAR(hit, found->second, kHitTolerance);
      }
    }
    EXPECT_GE(same, all * 2 / 3) << "of " << all;
    EXPECT_GT(deep, 0);
    EXPECT_EQ(branching, std::ssize(trees[0]));
  }
}

// Drafts as deep as that are the same whatever would come behind them; and after fewer passes there may be more.
TEST_P(GpuDraftsTest, ThereAreAsManyPassesAsAStepSays) {
  std::vector<Chain> chains;
  const std::unique_ptr<Drafting> gpu = on_gpu(), trees = on_gpu(false, 2);
  Drafting::Text& beside = gpu->text(2);
  for (int32_t passes = kMostDrafts - 1; passes > 0; --passes) {
    SCOPED_TRACE(cat(passes, " passes"));
    gpu->passes = trees->passes = passes;
    Drafting::Text &text = gpu->text(1), &branching = trees->text(1);
    gpu->step({{&beside, 7}, {&text, 20}});
    chains.push_back(gpu->chains({&text})[0]);
    ASSERT_EQ(std::ssize(chains.back()), passes + 1);
    for (int32_t i = 0; i <= passes; ++i) EXPECT_EQ(chains.back()[i].token, chains.front()[i].token) << i;
    trees->step({{&branching, 20}});
    const Chain tree = trees->chains({&branching}, kTreeDrafts)[0];
    size_t deepest = 0;
    for (const auto& [path, hit] : paths_in(tree)) deepest = std::max(deepest, path.size());
    EXPECT_EQ(std::ssize(tree), std::min(kTreeDrafts, 2 + 4 * passes));
    EXPECT_LE(std::ssize(tree), kTreeDrafts);
    EXPECT_LE(deepest, static_cast<size_t>(passes) + 1);
    EXPECT_GT(deepest, 1u);
  }
}

// Drafts that come in trees leave the same bits in pages, of the target and of the head, as tokens that come one by
// one: what is computed behind them says so. Some end with a page, after which the features of its last token are asked
// for.
TEST_P(GpuDraftsTest, TreesLeaveWhatTokensOneByOneLeave) {
  using Bits = std::vector<uint32_t>;
  const auto run = [&](bool in_trees, int32_t prompt) {
    const std::unique_ptr<Drafting> gpu = on_gpu(true, 3);
    Drafting::Text &other = gpu->text(2), &text = gpu->text(1);
    gpu->step({{&other, 12}, {&text, prompt}});
    const auto advance = [&](int32_t tokens, int32_t wrong) {
      if (in_trees) gpu->step({{&other, 1}, {&text, tokens, true, tokens - 1, wrong, false, true, true}});
      for (int32_t i = 0; !in_trees && i < tokens; ++i) gpu->step({{&text, 1}});
      if (!in_trees) gpu->step({{&other, 1}});
    };
    advance(4, 2);
    advance(1 + kMostDrafts, 0);
    advance(2, 3);
    Bits bits;
    for (int32_t step = 0; step < 3; ++step) {
      const std::vector<float> features = gpu->step({{&text, 1}}).front();
      for (const float number : features) bits.push_back(std::bit_cast<uint32_t>(number));
      const Chain tree = gpu->chains({&text}, kTreeDrafts)[0];
      for (const DraftToken& draft : tree) {
        bits.push_back(static_cast<uint32_t>(draft.token));
        bits.push_back(std::bit_cast<uint32_t>(draft.hit));
      }
    }
    return bits;
  };
  for (const int32_t prompt : {12, 20, 21}) {
    SCOPED_TRACE(cat("a prompt of ", prompt));
    EXPECT_EQ(run(true, prompt), run(false, prompt));
  }
}

// The check itself: keys, or values, that were not written show in what is said of that text, and of no other.
TEST_P(GpuDraftsTest, AnUnwrittenSlotShows) {
  using Part = SlotPoison::Part;
  for (const int32_t topk : {1, 3})
    for (const auto& [part, its_name] : {std::pair{Part::keys, "keys"}, {Part::values, "values"}}) {
      SCOPED_TRACE(cat(its_name, ", topk ", topk));
      const std::unique_ptr<Drafting> gpu = on_gpu(false, topk);
      std::vector<Drafting::Text*> texts;
      std::vector<Drafting::Part> next;
      for (uint64_t i = 0; i < 6; ++i) {
        texts.push_back(&gpu->text(i));
        next.push_back({texts.back(), 1});
        gpu->step({{texts.back(), 37}});
        EXPECT_GT(gpu->chains({texts.back()})[0][0].hit, 0);
      }
      const int32_t positions[] = {0, 15, 16, 17, 36};  // of each text but the last
      for (size_t i = 0; i < std::size(positions); ++i) gpu->spoil(*texts[i], positions[i], part);
      gpu->step(next);
      const std::vector<Chain> chains = gpu->chains(texts);
      for (size_t i = 0; i < std::size(positions); ++i) EXPECT_EQ(chains[i][0].hit, 0) << "position " << positions[i];
      for (const DraftToken& draft : chains.back()) EXPECT_GT(draft.hit, 0);
    }
}

// A text whose context ends soon has its first draft, and the others theirs.
TEST_P(GpuDraftsTest, NobodyDraftsPastTheContext) {
  const std::unique_ptr<Drafting> gpu = on_gpu();
  Drafting::Text &near = gpu->text(1), &far = gpu->text(2);
  for (int32_t i = 0; i < 3; ++i) gpu->step({{&near, 80, false}});
  gpu->step({{&near, 12}, {&far, 30}});
  const std::vector<Chain> chains = gpu->chains({&near, &far});
  EXPECT_EQ(chains[0].size(), 1u);
  EXPECT_EQ(chains[1].size(), static_cast<size_t>(kMostDrafts));
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuDraftsTest,
                         ::testing::Values(Kind{"bf16", BlockType::bf16}, Kind{"q8_0", BlockType::q8_0},
                                           Kind{"q4_1", BlockType::q4_1, false},
                                           Kind{"pages_of_one", BlockType::bf16, false, 1},
                                           Kind{"pages_of_128", BlockType::bf16, true, 128}),
                         [](const auto& made) { return std::string(made.param.name); });

// --- whole engines

// Every token with the bits of its logprob.
using Answer = std::vector<std::pair<int32_t, uint32_t>>;

class HeadEngine {
 public:
  HeadEngine(const model::Model& model, const EngineOptions& options, Exec& exec) : engine_(model, options, exec) {}

  // between: two steps, is told what has come so far.
  using Between = std::function<void(const std::vector<Answer>&, const std::vector<RequestId>&)>;
  std::vector<Answer> answers(const std::vector<Request>& requests, const Between& between = {}) {
    std::vector<Answer> answers(requests.size());
    std::vector<RequestId> ids;
    for (size_t i = 0; i < requests.size(); ++i)
      ids.push_back(engine_.submit(requests[i], [&, i](const Output& output) {
        EXPECT_EQ(output.error, "");
        if (output.token >= 0) answers[i].emplace_back(output.token, std::bit_cast<uint32_t>(output.logprobs.logprob));
      }));
    for (int steps = 0; engine_.step(); ++steps) {
      EXPECT_LT(steps, 20000);
      if (between) between(answers, ids);
    }
    return answers;
  }
  void cancel(RequestId id) { engine_.cancel(id); }
  EngineStats stats() const { return engine_.stats(); }

 private:
  Engine engine_;
};

// What a device's head says, none of which may come of slots that are no numbers.
class WatchedHits final : public DraftModel {
 public:
  explicit WatchedHits(DraftModel& drafts) : drafts_(drafts) {}
  bool has_slots(std::span<const PageId> pages) const override { return drafts_.has_slots(pages); }
  void catch_up(std::span<const RequestRow> rows) override { drafts_.catch_up(rows); }
  DraftToken first(RequestRow row) const override {
    const DraftToken draft = drafts_.first(row);
    EXPECT_GT(draft.hit, 0) << "the first draft of row " << row.value;
    return draft;
  }
  int32_t draft(std::span<const DraftsWanted> wanted) override {
    const int32_t passes = drafts_.draft(wanted);
    for (const DraftsWanted& each : wanted)
      for (const DraftToken& draft : *each.drafts)
        EXPECT_GT(draft.hit, 0) << "a draft of row " << each.row.value << " behind position " << each.position;
    return passes;
  }

 private:
  DraftModel& drafts_;
};

// A GPU's steps, before each of which slots of the head are no numbers: those that the step and its passes write before
// they read them, behind what the head has of each text, those of branches, and the reserved page's.
class PoisonedSteps final : public StepDevice {
 public:
  explicit PoisonedSteps(const StepDeviceParts& parts)
      : limits_(parts.limits),
        table_(parts.table),
        exec_(parts.exec),
        device_(parts),
        poison_(dynamic_cast<const GpuDrafts&>(*device_.draft_model()).store()),
        watched_(*device_.draft_model()) {}
  void launch(Step& step) override {
    const int32_t tokens = limits_.page_size.tokens();
    spoil(0, tokens);
    spoil(int64_t{limits_.pages + 1} * tokens, poison_.slots());
    for (const Share& share : step.batch.shares) {
      const auto room = static_cast<int32_t>(std::ssize(table_.pages(share.row))) * tokens;
      for (int32_t position = share.position + (share.drafted ? 1 : 0); position < room; ++position) {
        const int64_t slot = table_.slot(share.row, position).value;
        spoil(slot, slot + 1);
      }
    }
    device_.launch(step);
  }
  void draw(Step& step) override { device_.draw(step); }
  void finish(Step& step) override { device_.finish(step); }
  DraftModel* draft_model() override { return &watched_; }

 private:
  void spoil(int64_t begin, int64_t end) { poison_.spoil(begin, end, *exec_.stream()); }

  const SchedulerLimits& limits_;
  const kv::RequestTable& table_;
  Exec& exec_;
  GpuSteps device_;
  SlotPoison poison_;
  WatchedHits watched_;
};

// A target and a head that knows it, on a GPU.
class GpuHeadEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
  void load(float certain) {
    load(model::testing::target_without_memory(certain),
         [certain](const model::Model& target) { return model::testing::knowing_head(target, certain); });
  }
  void load(const TinyModel& tiny, const std::function<model::testing::HeadWriter(const model::Model&)>& head_for) {
    file_ = std::make_unique<TinyFile>(tiny);
    Exec host{{.threads = 2}};
    head_file_ = std::make_unique<TinyHeadFile>(head_for(model::Model(file_->path(), host)));
    head_.reset();
    target_.reset();
    exec_.reset();
    stream_ = std::make_unique<cuda::Stream>();
    exec_ = std::make_unique<Exec>(ExecOptions{.threads = 2, .stream = stream_.get()});
    target_ = std::make_unique<model::Model>(file_->path(), *exec_);
    head_ = std::make_unique<model::EagleHead>(head_file_->path(), *target_, *exec_);
  }
  static EngineOptions options(int32_t running, int32_t page_size, int32_t pool) {
    EngineOptions options;
    options.deterministic = true;
    options.context = kContext;
    options.max_total_tokens = pool;
    options.max_running_requests = running;
    options.page_size = page_size;
    options.prefill_chunk = options.mixed_chunk = 48;
    options.speculative_num_draft_tokens = 5;
    return options;
  }
  std::vector<Answer> without_head(const EngineOptions& options, const std::vector<Request>& requests) {
    return HeadEngine(*target_, options, *exec_).answers(requests);
  }
  std::vector<Answer> without_trees(EngineOptions options, const std::vector<Request>& requests) {
    options.speculative_eagle_topk = 1;
    options.speculative_num_steps = 0;
    return without_head(options, requests);
  }
  HeadEngine with_head(EngineOptions options) {
    options.head = head_.get();
    return HeadEngine(*target_, options, *exec_);
  }
  // Verifications in which at least so many drafts came.
  static int64_t came_together(const EngineStats& stats, size_t least) {
    const auto& by_correct = stats.speculated.by_correct;
    return std::accumulate(by_correct.begin() + least, by_correct.end(), int64_t{0});
  }
  static void expect_pages_are_back(const HeadEngine& engine) {
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  }

  std::unique_ptr<TinyFile> file_;
  std::unique_ptr<TinyHeadFile> head_file_;
  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<Exec> exec_;
  std::unique_ptr<model::Model> target_;
  std::unique_ptr<model::EagleHead> head_;
};

// Some are sure of what comes and some are drawn, so that drafts come in part; prompts in chunks, of which two have a
// prefix together. Pages are there for all, for half of them, or for hardly more than one: who has none for its passes
// has fewer drafts.
TEST_F(GpuHeadEngine, DraftsChangeNoBitAndCome) {
  load(0.6f);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    std::vector<int32_t> prompt = random_ids(40, 320, 1);
    if (i >= 2) prompt = random_ids(9 + 17 * static_cast<int32_t>(i), 320, i);
    prompt.push_back(static_cast<int32_t>(i));
    requests.push_back({.prompt = prompt,
                        .sampling = {.temperature = i % 3 == 0 ? 0.0f : 0.4f * static_cast<float>(i % 3), .seed = i},
                        .max_new_tokens = 60 + 3 * static_cast<int32_t>(i),
                        .top_logprobs = 0,
                        .speculative = i != 4});
  }
  Speculated all;
  for (const int32_t running : {1, 6})
    for (const int32_t page_size : {1, 16})
      for (const int32_t pool : {kContext, kContext + 32, 3 * kContext, 8 * kContext}) {
        SCOPED_TRACE(cat(running, " at once, pages of ", page_size, " for ", pool, " tokens"));
        const EngineOptions used = options(running, page_size, pool);
        const std::vector<Answer> expected = without_head(used, requests);
        HeadEngine drafting = with_head(used);
        EXPECT_EQ(drafting.answers(requests), expected);
        const EngineStats stats = drafting.stats();
        EXPECT_GT(stats.speculated.correct, 30);
        EXPECT_GT(stats.speculated.drafts, stats.speculated.correct);
        all.add(stats.speculated);
        expect_pages_are_back(drafting);
      }
  for (int32_t came = 0; came <= 4; ++came) EXPECT_GT(all.by_correct[came], 0) << came << " of up to 4 drafts";
}

// The same with trees: more drafts are verified than a chain of so many steps has.
TEST_F(GpuHeadEngine, TreesChangeNoBitAndCome) {
  load(0.6f);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 7; ++i) {
    std::vector<int32_t> prompt = random_ids(9 + 17 * static_cast<int32_t>(i), 320, i % 5);
    requests.push_back({.prompt = prompt,
                        .sampling = {.temperature = i % 3 == 0 ? 0.0f : 0.4f * static_cast<float>(i % 3), .seed = i},
                        .max_new_tokens = 60 + 3 * static_cast<int32_t>(i),
                        .top_logprobs = 0,
                        .speculative = i != 4});
  }
  for (const int32_t running : {1, 5})
    for (const int32_t page_size : {1, 16, 128})
      for (const int32_t pool : {kContext, 6 * kContext}) {
        SCOPED_TRACE(cat(running, " at once, pages of ", page_size, " for ", pool, " tokens"));
        EngineOptions used = options(running, page_size, pool);
        used.speculative_eagle_topk = 4;
        used.speculative_num_steps = 3;
        used.speculative_num_draft_tokens = 13;
        const std::vector<Answer> expected = without_trees(used, requests);
        HeadEngine drafting = with_head(used);
        EXPECT_EQ(drafting.answers(requests), expected);
        const Speculated& speculated = drafting.stats().speculated;
        EXPECT_GT(speculated.correct, 30);
        // Beside others a request has fewer of the rows of a step.
        const bool has_rows = running == 1 && pool > kContext;
        EXPECT_TRUE(!has_rows || speculated.drafts > used.speculative_num_steps * speculated.verifications)
            << speculated.drafts << " of " << speculated.verifications << " are no more than chains have";
        expect_pages_are_back(drafting);
        EXPECT_EQ(drafting.answers(requests), expected) << "from what it has left in the prefix tree";
      }
}

// The one that comes latest for the first time.
int32_t last_new_token(const Answer& answer) {
  std::set<int32_t> seen;
  int32_t last = -1;
  for (const auto& [token, logprob] : answer)
    if (seen.insert(token).second) last = token;
  return last;
}

// A head that is always right: what it drafts is accepted in whole chains, which only passes give; and it ends with a
// stop id in the midst of some. What such a request leaves in the prefix tree is right for who goes on from there.
TEST_F(GpuHeadEngine, StopsEndAcceptedChains) {
  load(1);
  for (const int32_t page_size : {1, 16}) {
    SCOPED_TRACE(cat("pages of ", page_size));
    const EngineOptions used = options(6, page_size, 8 * kContext);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 6; ++i)
      requests.push_back({.prompt = random_ids(10 + 7 * static_cast<int32_t>(i), 320, i),
                          .sampling = {.temperature = 0},
                          .max_new_tokens = 80,
                          .top_logprobs = 0});
    const std::vector<Answer> unstopped = without_head(used, requests);
    for (size_t i = 0; i < requests.size(); ++i) requests[i].stop_ids = {last_new_token(unstopped[i])};
    const std::vector<Answer> stopped = without_head(used, requests);
    HeadEngine drafting = with_head(used);
    EXPECT_EQ(drafting.answers(requests), stopped);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const auto& [token, logprob] : stopped[i]) requests[i].prompt.push_back(token);
      requests[i].stop_ids.clear();
    }
    EXPECT_EQ(drafting.answers(requests), without_head(used, requests));
    EXPECT_GT(came_together(drafting.stats(), 2), 0) << "several at a time, which only passes give";
    expect_pages_are_back(drafting);
  }
}

// Others that come into their rows and pages are not disturbed.
TEST_F(GpuHeadEngine, CancelledBetweenRoundsDisturbsNobody) {
  load(0.6f);
  for (const int32_t page_size : {1, 16}) {
    SCOPED_TRACE(cat("pages of ", page_size));
    const EngineOptions used = options(4, page_size, 3 * kContext);
    std::vector<Request> requests;
    for (uint64_t i = 0; i < 12; ++i)
      requests.push_back({.prompt = random_ids(8 + 5 * static_cast<int32_t>(i), 320, i),
                          .sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.5f, .seed = i},
                          .max_new_tokens = 60,
                          .top_logprobs = 0});
    const std::vector<Answer> expected = without_head(used, requests);
    HeadEngine drafting = with_head(used);
    std::set<size_t> cancelled;
    const std::vector<Answer> heard =
        drafting.answers(requests, [&](const std::vector<Answer>& so_far, const std::vector<RequestId>& ids) {
          for (size_t i = 0; i < ids.size(); i += 3)
            if (so_far[i].size() > 10 + i && cancelled.insert(i).second) drafting.cancel(ids[i]);
        });
    int cut = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(cat("request ", i));
      ASSERT_LE(heard[i].size(), expected[i].size());
      EXPECT_TRUE(std::equal(heard[i].begin(), heard[i].end(), expected[i].begin()));
      EXPECT_TRUE(i % 3 == 0 || heard[i].size() == expected[i].size());
      cut += heard[i].size() < expected[i].size();
    }
    EXPECT_EQ(cut, 4);
    EXPECT_GT(drafting.stats().speculated.correct, 10);
    expect_pages_are_back(drafting);
  }
}

// A head that is never right is left, and then steps overlap as without one; the same bits come, those of requests that
// were followed at first and of such as come later.
TEST_F(GpuHeadEngine, StepsOverlapWhereNobodyIsFollowed) {
  load(0.6f);
  const TinyHeadFile noise(model::testing::tiny_head(*target_, {.head_dim = 64, .seed = 3}));
  const model::EagleHead head(noise.path(), *target_, *exec_);
  EngineOptions used = options(6, 16, 8 * kContext);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 24; ++i)
    requests.push_back({.prompt = random_ids(10 + 3 * static_cast<int32_t>(i), 320, i),
                        .sampling = {.temperature = i % 2 == 0 ? 0.0f : 0.7f, .seed = i},
                        .max_new_tokens = 150,
                        .top_logprobs = 0});
  const std::vector<Answer> expected = without_head(used, requests);
  used.head = &head;
  HeadEngine drafting(*target_, used, *exec_);
  EXPECT_EQ(drafting.answers(requests), expected);
  const EngineStats stats = drafting.stats();
  EXPECT_GT(stats.overlapped_steps, stats.steps / 4);
  expect_pages_are_back(drafting);
}

// Random schedules with the head in all of them, chains and trees: of a target that knows nothing of what came before,
// so that its head is right and is followed, and of one whose every key counts, for which others know what comes.
TEST_F(GpuHeadEngine, WhateverHappensDraftsChangeNoBit) {
  for (const bool knows : {true, false}) {
    SCOPED_TRACE(knows ? "a head that knows" : "a head of random numbers");
    if (knows)
      load(0.6f);
    else
      load({.width = 128,
            .ffn_width = 192,
            .heads = 4,
            .kv_heads = 2,
            .head_dim = 64,
            .context = kContext,
            .type = BlockType::bf16},
           [](const model::Model& target) {
             return model::testing::tiny_head(
                 target, {.head_dim = 64, .ffn_width = 160, .type = BlockType::bf16, .spread = 0.08f});
           });
    const testing::Scheduled over{
        .model = *target_,
        .head = *head_,
        .exec = {.stream = stream_.get()},
        .page_sizes = {1, 16, 64},
        .head_in_all = true,
        .drafters = knows ? 12 : 6,
        .make_device = [](const StepDeviceParts& parts) { return std::make_unique<PoisonedSteps>(parts); }};
    int64_t retractions = 0, cancelled = 0, cached = 0, by_head = 0;
    Speculated speculated;
    for (uint32_t seed = 0; seed < 8 && !HasFailure(); ++seed) {
      SCOPED_TRACE(cat("seed ", seed));
      testing::RandomSchedule same(over, seed);
      same.run();
      retractions += same.retractions;
      cancelled += same.cancelled_in_time;
      cached += same.cached;
      by_head += same.by_head;
      speculated.add(same.speculated);
    }
    EXPECT_GT(retractions, 0);
    EXPECT_GT(cancelled, 0);
    EXPECT_GT(cached, 50);
    EXPECT_GT(speculated.correct, 50);
    EXPECT_TRUE(!knows || by_head > 20) << by_head;
  }
}

}  // namespace
}  // namespace quire::engine
