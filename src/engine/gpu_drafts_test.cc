// A head on a GPU beside the same head on the CPU: features, first drafts and chains; and, where it is deterministic,
// the same bits whatever is computed beside a text.
#include "engine/gpu_drafts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/cuda.h"
#include "engine/eagle_drafts.h"
#include "engine/engine.h"
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

constexpr int32_t kContext = 256, kMostDrafts = 5;

SchedulerLimits limits_of(PageSize page_size) {
  return {.context = kContext,
          .pages = page_size.pages_for(8 * kContext),
          .page_size = page_size,
          .running = 6,
          .prefill_chunk = 96,
          .mixed_chunk = 96,
          .prefix_cache = false,
          .drafts = kMostDrafts,
          .draft_model = true};
}

// One device's runner and head. A text is a request; its tokens are what the test says that was drawn.
class Drafting {
 public:
  Drafting(const std::string& model, const std::string& head, cuda::Stream* stream, bool deterministic,
           PageSize page_size)
      : limits_(limits_of(page_size)),
        exec_({.threads = 2, .stream = stream}),
        model_(model, exec_),
        head_(head, model_, exec_),
        pool_(limits_.pages + 1, page_size),
        table_(pool_, limits_.running + 1, kContext),
        runner_(model_, limits_, Dtype::bf16, table_, exec_, nullptr, deterministic, &head_.features()) {
    if (stream)
      on_gpu_.emplace(head_, limits_, Dtype::bf16, table_, runner_, deterministic, exec_);
    else
      on_cpu_.emplace(head_, limits_, Dtype::bf16, table_, exec_);
  }

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

  // The next `count` tokens, of which the last `drafts` are drafts that come, and one more that does not; behind them
  // a token is drawn, or the text is a prompt that goes on.
  struct Part {
    Text* text;
    int32_t count;
    bool draws = true;
    int32_t drafts = 0;
  };
  // Features of the step's rows.
  std::vector<std::vector<float>> step(const std::vector<Part>& parts) {
    Batch batch;
    StepResults results;
    for (const Part& part : parts) {
      Text& text = *part.text;
      const int32_t known = text.computed + part.count - part.drafts;
      std::vector<DraftToken> drafts;
      for (int32_t i = 0; i < part.drafts; ++i) drafts.push_back({text.tokens[known + i], 0.5f});
      if (part.drafts > 0) drafts.push_back({(text.tokens[known + part.drafts] + 1) % 320, 0.5f});
      batch.add({.id = 1,
                 .row = text.row,
                 .position = text.computed,
                 .count = part.count + (part.drafts > 0),
                 .drafts = static_cast<int32_t>(drafts.size()),
                 .prefills = !part.draws,
                 .draws = part.draws,
                 .followed = true,
                 .drafted = text.drafted,
                 .request = text.request},
                std::span(text.tokens).first(known), drafts);
      if (!part.draws) continue;
      for (int32_t i = 0; i < 1 + static_cast<int32_t>(drafts.size()); ++i) {
        RowResult& row = results.drawn.emplace_back();
        if (i <= part.drafts) row.tokens.push_back({.token = text.tokens[known + i]});
      }
    }
    const Rows<const float> features = runner_.run(batch).features;
    std::vector<std::vector<float>> rows;
    for (int32_t i = 0; i < batch.rows(); ++i) rows.push_back(copied(features.row(i), features.dim));
    if (on_gpu_)
      on_gpu_->extend(batch, results);
    else
      on_cpu_->extend(batch, results, features);
    for (const Part& part : parts) {
      part.text->computed += part.count;
      part.text->drafted = part.draws;
    }
    return rows;
  }

  DraftModel& drafts() { return on_gpu_ ? static_cast<DraftModel&>(*on_gpu_) : *on_cpu_; }
  std::vector<Chain> chains(const std::vector<Text*>& of, int32_t most = kMostDrafts) {
    std::vector<Chain> chains(of.size());
    std::vector<DraftsWanted> wanted;
    for (size_t i = 0; i < of.size(); ++i)
      wanted.push_back({.row = of[i]->row,
                        .position = of[i]->computed,
                        .most = most,
                        .least = 0,
                        .record = &of[i]->record,
                        .drafts = &chains[i]});
    drafts().draft(wanted);
    return chains;
  }

 private:
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
  std::optional<GpuDrafts> on_gpu_;
  std::optional<EagleDrafts> on_cpu_;
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
  std::unique_ptr<Drafting> on_gpu(bool deterministic = false) { return drafting(stream_.get(), deterministic); }
  std::unique_ptr<Drafting> on_cpu() { return drafting(nullptr, false); }
  std::unique_ptr<Drafting> drafting(cuda::Stream* stream, bool deterministic) {
    return std::make_unique<Drafting>(model_file_->path(), head_file_->path(), stream, deterministic,
                                      PageSize(GetParam().page_size));
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
  draft({2, 1}, 2);
  step([](const auto& t) { return std::vector<Drafting::Part>{{t[1], 2, true, 1}, {t[2], 1}, {t[0], 3, true, 2}}; });
  draft({1, 0, 2}, 5);
  EXPECT_GE(same, all * 3 / 4) << "of " << all;
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
      step({&text, 48}, 40);
    }
    if (third && !in_chunks) gpu->step({{third, 7}});
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
                                           Kind{"pages_of_one", BlockType::bf16, false, 1}),
                         [](const auto& made) { return std::string(made.param.name); });

// --- whole engines

// Every token with the bits of its logprob.
using Answer = std::vector<std::pair<int32_t, uint32_t>>;

class HeadEngine {
 public:
  HeadEngine(const model::Model& model, const EngineOptions& options, Exec& exec) : engine_(model, options, exec) {}

  std::vector<Answer> answers(const std::vector<Request>& requests) {
    std::vector<Answer> answers(requests.size());
    for (size_t i = 0; i < requests.size(); ++i)
      engine_.submit(requests[i], [&, i](const Output& output) {
        EXPECT_EQ(output.error, "");
        if (output.token >= 0) answers[i].emplace_back(output.token, std::bit_cast<uint32_t>(output.logprobs.logprob));
      });
    for (int steps = 0; engine_.step(); ++steps) EXPECT_LT(steps, 20000);
    return answers;
  }
  EngineStats stats() const { return engine_.stats(); }

 private:
  Engine engine_;
};

// Some are sure of what comes and some are drawn, so that drafts come in part; prompts in chunks, of which two have a
// prefix together, and pages for half of them.
TEST(GpuHeadEngine, DraftsChangeNoBitAndCome) {
  if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  const TinyFile file(model::testing::target_without_memory(0.6f));
  Exec host{{.threads = 2}};
  const TinyHeadFile head_file(model::testing::knowing_head(model::Model(file.path(), host), 0.6f));
  cuda::Stream stream;
  Exec exec{{.threads = 2, .stream = &stream}};
  const model::Model target(file.path(), exec);
  const model::EagleHead head(head_file.path(), target, exec);
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
  for (const int32_t running : {1, 6})
    for (const int32_t page_size : {1, 16}) {
      SCOPED_TRACE(cat(running, " at once, pages of ", page_size));
      EngineOptions options;
      options.deterministic = true;
      options.context = kContext;
      options.max_total_tokens = running == 1 ? kContext : 3 * kContext;
      options.max_running_requests = running;
      options.page_size = page_size;
      options.prefill_chunk = options.mixed_chunk = 48;
      options.speculative_num_draft_tokens = 5;
      const std::vector<Answer> expected = HeadEngine(target, options, exec).answers(requests);
      options.head = &head;
      HeadEngine drafting(target, options, exec);
      EXPECT_EQ(drafting.answers(requests), expected);
      const EngineStats stats = drafting.stats();
      EXPECT_GT(stats.speculated.correct, 100);
      EXPECT_GT(stats.speculated.drafts, stats.speculated.correct);
      EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    }
}

TEST(GpuHeadEngine, RefusesStepsInFlight) {
  if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  const TinyFile file(model::testing::target_without_memory(1));
  Exec host{{.threads = 2}};
  const TinyHeadFile head_file(model::testing::knowing_head(model::Model(file.path(), host), 1));
  cuda::Stream stream;
  Exec exec{{.threads = 2, .stream = &stream}};
  const model::Model target(file.path(), exec);
  const model::EagleHead head(head_file.path(), target, exec);
  EngineOptions options;
  options.head = &head;
  options.max_total_tokens = 1024;
  options.steps_in_flight = 1;
  EXPECT_THROW(Engine(target, options, exec), CheckError);
}

}  // namespace
}  // namespace quire::engine
