// With EngineOptions::deterministic a GPU keeps what the engine promises: a request's tokens and logprobs, to the bit,
// are its own, whatever is computed beside it and however its text came to be in the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "engine/testing.h"
#include "engine/testing_steady_device.h"
#include "model/testing.h"

namespace quire::engine {
namespace {

using model::testing::random_ids;
using model::testing::TinyFile;
using model::testing::TinyModel;
using Tokens = std::vector<int32_t>;

constexpr int32_t kContext = 2048;

struct Kind {
  const char* name;
  TinyModel model;
};

class GpuDeterministic : public ::testing::TestWithParam<Kind> {
 protected:
  // Every token with the bits of its logprobs, those of the prompt first.
  using Bits = std::vector<std::pair<int32_t, uint32_t>>;
  struct Heard {
    Bits bits;
    Tokens tokens;
    int32_t cached = 0;
    Finish finish = Finish::none;
  };

  // An engine stepped by the test. How many drafts it verifies depends on no clock.
  class Stepped {
   public:
    Stepped(const model::Model& model, const EngineOptions& options, Exec& exec)
        : engine_(model, options, exec, options.make_drafter ? testing::steady_device : StepDeviceMaker()) {}

    RequestId submit(const Request& request) {
      return engine_.submit(request, [this](const Output& output) { hear(output); });
    }
    void drain() {
      for (int steps = 0; engine_.step(); ++steps) ASSERT_LT(steps, 20000);
    }
    const Heard& finish(const Request& request) {
      const RequestId id = submit(request);
      drain();
      return heard_[id];
    }
    const Heard& heard(RequestId id) { return heard_[id]; }
    Engine& engine() { return engine_; }

   private:
    void hear(const Output& output) {
      Heard& of = heard_[output.id];
      for (const TokenLogprob& logprob : output.prompt_logprobs) append(of.bits, logprob);
      if (output.token >= 0) append(of.bits, output.logprobs);
      if (output.token >= 0) of.tokens.push_back(output.token);
      for (const float x : output.embedding) of.bits.emplace_back(-1, std::bit_cast<uint32_t>(x));
      of.cached = output.cached_tokens;
      of.finish = output.finish;
    }
    static void append(Bits& bits, const TokenLogprob& logprob) {
      bits.emplace_back(logprob.token, std::bit_cast<uint32_t>(logprob.logprob));
      for (const auto& [id, value] : logprob.top) bits.emplace_back(id, std::bit_cast<uint32_t>(value));
    }

    std::map<RequestId, Heard> heard_;
    Engine engine_;
  };

  void SetUp() override {
    if (cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
    stream_ = std::make_unique<cuda::Stream>();
    exec_ = std::make_unique<Exec>(ExecOptions{.threads = 4, .stream = stream_.get()});
    file_ = std::make_unique<TinyFile>(GetParam().model);
    model_ = std::make_unique<model::Model>(file_->path(), *exec_);
  }

  static EngineOptions options(int32_t running, int32_t chunk) {
    EngineOptions made;
    made.deterministic = true;
    made.max_total_tokens = 40 * 1024;
    made.max_running_requests = running;
    made.max_queued_requests = 1000;
    made.prefill_chunk = chunk;
    made.mixed_chunk = chunk;
    return made;
  }
  Tokens ids(int32_t count, uint64_t seed) const { return random_ids(count, model_->config().vocabulary, seed); }
  Request greedy(int32_t prompt, int32_t new_tokens, uint64_t seed = 1) const {
    return {
        .prompt = ids(prompt, seed), .sampling = {.temperature = 0}, .max_new_tokens = new_tokens, .top_logprobs = 3};
  }
  std::unique_ptr<Stepped> engine(const EngineOptions& made) {
    return std::make_unique<Stepped>(*model_, made, *exec_);
  }
  // In one piece, without anybody else.
  Bits alone(const Request& request) {
    EngineOptions made = options(1, 8192);
    made.prefix_cache = false;
    const Heard heard = engine(made)->finish(request);
    EXPECT_EQ(heard.finish, Finish::length);
    return heard.bits;
  }

  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<Exec> exec_;
  std::unique_ptr<TinyFile> file_;
  std::unique_ptr<model::Model> model_;
};

// Other kernels, the same numbers but for rounding: of each token of a text, and after a prompt of many rows at once.
// Quantised rows are 8 bits, and bf16 where the default has many of them.
//
// Rounding to bf16 moves a number between 1 and 2 by 2^-8 / sqrt(3) in the mean square, 0.17 % of numbers of any size.
// Rounding to 8 bits moves those of a block of 32 by its largest, some two deviations, / 127 / sqrt(12): 0.48 %. A row
// is rounded some 14 times on its way through two layers, so logits, taken to deviate from each other by 4, are
// off by 4 sqrt(14) times that: 0.025, or 0.07. On an H200 it was 0.024 and 0.032, or 0.054 and 0.102, and the furthest
// of 300 was 3.3 to 5.7 deviations off. Allowed are 1.6 times the larger deviation, and 4 times that for the furthest.
TEST_P(GpuDeterministic, IsTheDefaultWithinRounding) {
  Request text = greedy(300, 0);
  text.top_logprobs = 0;
  text.prompt_logprobs_from = 0;
  Request prompt = greedy(1500, 1);
  prompt.top_logprobs = 0;
  const double most_deviation = GetParam().model.type == BlockType::bf16 ? 0.05 : 0.16;
  EngineOptions fast = options(1, 8192);
  fast.deterministic = false;
  const auto by_default = engine(fast);
  for (const Request& request : {text, prompt}) {
    const Bits expected = by_default->finish(request).bits, bits = alone(request);
    ASSERT_EQ(bits.size(), expected.size());
    ASSERT_GT(bits.size(), 0u);
    double squares = 0, furthest = 0;
    for (size_t i = 0; i < bits.size(); ++i) {
      const double off = std::bit_cast<float>(bits[i].second) - std::bit_cast<float>(expected[i].second);
      squares += off * off;
      furthest = std::max(furthest, std::abs(off));
    }
    const double deviation = std::sqrt(squares / static_cast<double>(bits.size()));
    std::printf("%zu logprobs: deviation %.4f, furthest %.4f\n", bits.size(), deviation, furthest);
    EXPECT_LT(deviation, most_deviation);
    EXPECT_LT(furthest, 4 * most_deviation);
  }
}

TEST_P(GpuDeterministic, InAnyBatch) {
  const Request request = greedy(150, 40);
  const Bits expected = alone(request);
  for (const int32_t others : {1, 5, 12, 30, 70, 130}) {
    const auto stepped = engine(options(others + 1, 512));
    std::vector<RequestId> same = {stepped->submit(request)};
    for (int32_t i = 0; i < others; ++i) stepped->submit(greedy(1 + 7 * (i % 40), 10 + i % 60, 100 + i));
    for (int32_t step = 0; step < 7; ++step) stepped->engine().step();
    same.push_back(stepped->submit(request));
    stepped->drain();
    for (const RequestId id : same) EXPECT_EQ(stepped->heard(id).bits, expected) << "beside " << others;
  }
}

// Of 1, 64 and 200 rows by graphs, of 1500 operation by operation.
TEST_P(GpuDeterministic, InAnyChunksAndAfterAnyCachedPrefix) {
  const Request request = greedy(1500, 12);
  const Bits expected = alone(request);
  for (const int32_t chunk : {1, 64, 200, 700, 8192}) {
    const auto stepped = engine(options(4, chunk));
    EXPECT_EQ(stepped->finish(request).bits, expected) << "chunks of " << chunk;
    const Heard& again = stepped->finish(request);
    EXPECT_GT(again.cached, 1400);
    EXPECT_EQ(again.bits, expected) << "cached by chunks of " << chunk;
    Request shorter = request;
    shorter.prompt.resize(700);
    stepped->engine().flush_cache();
    stepped->finish(shorter);
    EXPECT_EQ(stepped->finish(request).bits, expected) << "after a prefix that was cached by another";
  }
}

TEST_P(GpuDeterministic, PromptLogprobsAreThoseOfDecoding) {
  const Request request = greedy(20, 100);
  const Bits expected = alone(request);
  constexpr size_t kEach = 4;  // a token and its three likeliest
  ASSERT_EQ(expected.size(), 100 * kEach);
  Request text = request;
  for (size_t i = 0; i < expected.size(); i += kEach) text.prompt.push_back(expected[i].first);
  text.max_new_tokens = 0;
  text.prompt_logprobs_from = 20;
  for (const int32_t chunk : {1, 13, 8192})
    EXPECT_EQ(engine(options(1, chunk))->finish(text).bits, expected) << "chunks of " << chunk;
}

TEST_P(GpuDeterministic, ARetractedRequestGoesOnWithTheBitsOfItsDecoding) {
  std::vector<Request> requests;
  std::vector<Bits> expected;
  for (uint64_t i = 0; i < 6; ++i) {
    requests.push_back(greedy(60 + 10 * static_cast<int32_t>(i), 180, 50 + i));
    expected.push_back(alone(requests.back()));
  }
  EngineOptions tight = options(6, 8192);
  tight.max_total_tokens = 700;
  tight.context = 600;
  const auto stepped = engine(tight);
  std::vector<RequestId> all;
  for (const Request& request : requests) all.push_back(stepped->submit(request));
  stepped->drain();
  EXPECT_GT(stepped->engine().stats().retractions, 1);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(stepped->heard(all[i]).bits, expected[i]) << "request " << i;
}

// Tokens that the host has not read yet are counted, too, and a text that comes back is counted once.
TEST_P(GpuDeterministic, PenaltiesAreThoseOfOneStepAtATime) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back(greedy(30 + 9 * static_cast<int32_t>(i), 120, 70 + i));
    requests.back().sampling = {.temperature = 0.7f,
                                .repetition_penalty = 1.2f,
                                .frequency_penalty = 0.3f,
                                .presence_penalty = 0.1f,
                                .seed = i};
  }
  std::vector<Bits> expected;
  for (const int32_t depth : {0, 1, 2}) {
    EngineOptions tight = options(5, 64);
    tight.max_total_tokens = 448;
    tight.context = 400;
    tight.steps_in_flight = depth;
    const auto stepped = engine(tight);
    std::vector<RequestId> all;
    for (const Request& request : requests) all.push_back(stepped->submit(request));
    stepped->drain();
    EXPECT_GT(stepped->engine().stats().retractions, 0);
    for (size_t i = 0; i < all.size(); ++i) {
      if (depth == 0) expected.push_back(stepped->heard(all[i]).bits);
      EXPECT_EQ(stepped->heard(all[i]).bits, expected[i]) << "request " << i << ", " << depth << " steps in flight";
    }
  }
}

// Only tokens of a residue that changes with each token. Now and then it is late, and its row is computed again.
class LateMask final : public TokenMask {
 public:
  explicit LateMask(int32_t vocabulary, bool is_late = true)
      : vocabulary_(vocabulary), is_late_(is_late), words_((vocabulary + 31) / 32) {}
  const uint32_t* next() override {
    if (is_late_ && at_ % 5 == 4) std::this_thread::sleep_for(std::chrono::milliseconds(8));
    std::fill(words_.begin(), words_.end(), 0);
    for (int32_t id = at_ % 7; id < vocabulary_; id += 7) words_[id / 32] |= uint32_t{1} << id % 32;
    return words_.data();
  }
  void accept(int32_t token) override {
    EXPECT_EQ(token % 7, at_ % 7);
    ++at_;
  }

 private:
  int32_t vocabulary_, at_ = 0;
  bool is_late_;
  std::vector<uint32_t> words_;
};

// Of requests whose answers are known, told apart by prompt, length and seed: each draft is right so often.
MakeDrafter knowing(std::vector<Request> requests, std::vector<Tokens> answers, double right) {
  return [requests = std::move(requests), answers = std::move(answers), right](const Request& request) {
    Tokens whole = request.prompt;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].prompt != request.prompt || requests[i].max_new_tokens != request.max_new_tokens ||
          requests[i].sampling.seed != request.sampling.seed)
        continue;
      whole.insert(whole.end(), answers[i].begin(), answers[i].end());
      break;
    }
    return std::make_unique<testing::KnowingDrafter>(std::move(whole), right, 1);
  };
}

// Under masks that are in time and others that are late, with penalties, and beside requests without: all have the bits
// that they have alone, and whoever's mask is in time has a token in each step.
TEST_P(GpuDeterministic, MasksKeepThePaceOfThoseBeside) {
  const int32_t vocabulary = model_->config().vocabulary;
  const auto made = [&](uint64_t i) {
    Request request = greedy(20 + 9 * static_cast<int32_t>(i), 80, 90 + i);
    if (i % 2) request.sampling = {.temperature = 0.7f, .frequency_penalty = 0.3f, .seed = i};
    if (i >= 2) request.mask = std::make_shared<LateMask>(vocabulary, i == 5);
    return request;
  };
  std::vector<Bits> expected;
  for (uint64_t i = 0; i < 6; ++i) expected.push_back(alone(made(i)));
  for (const int32_t depth : {0, 1, 2}) {
    SCOPED_TRACE(cat(depth, " steps in flight"));
    EngineOptions made_options = options(6, 256);
    made_options.steps_in_flight = depth;
    const auto stepped = engine(made_options);
    std::vector<RequestId> all;
    for (uint64_t i = 0; i < 6; ++i) all.push_back(stepped->submit(made(i)));
    for (int step = 0; step < 10; ++step) stepped->engine().step();
    std::vector<size_t> before;
    for (const RequestId id : all) before.push_back(stepped->heard(id).tokens.size());
    for (int step = 0; step < 40; ++step) stepped->engine().step();
    for (size_t i = 0; i < 5; ++i)  // on a busy machine any mask may be late
      EXPECT_GE(stepped->heard(all[i]).tokens.size() + (i < 2 ? 0 : 4), before[i] + 40) << "request " << i;
    stepped->drain();
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(stepped->heard(all[i]).bits, expected[i]) << "request " << i;
  }
}

// Requests of every kind at once: masks that are late, penalties, biases, forbidden stops, more logprobs than a row's
// results hold, scored and pooled prompts, prompts of exactly a chunk; they come and are cancelled while steps are in
// flight, and pages are too few for them. Whoever was not cancelled has the bits that it has alone.
TEST_P(GpuDeterministic, WhateverHappensAroundIt) {
  constexpr int32_t kChunk = 48, kRequests = 30;
  const int32_t vocabulary = model_->config().vocabulary;
  const auto made = [&](uint64_t number) {
    std::mt19937_64 random(number);
    const auto below = [&](int32_t limit) { return static_cast<int32_t>(random() % static_cast<uint64_t>(limit)); };
    const int32_t lengths[] = {1, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, 5 + below(90)};
    // Some share their beginnings, and most outgrow what is kept free for them when they are admitted.
    Request request = greedy(lengths[below(6)], below(6) ? 120 + below(30) : 5 + below(20), number % 4);
    request.top_logprobs = below(4) - 1;
    ops::SamplingParams& sampling = request.sampling;
    if (below(3) == 0) sampling.temperature = 0.8f, sampling.top_p = 0.9f, sampling.seed = number;
    if (below(3) == 0) sampling.frequency_penalty = 0.4f, sampling.presence_penalty = 0.2f;
    if (below(4) == 0) sampling.repetition_penalty = 1.3f;
    if (below(4) == 0) sampling.logit_bias = {{below(vocabulary), -100.0f}, {below(vocabulary), 2.0f}};
    if (below(4) == 0) request.stop_ids = ids(40, number), request.min_new_tokens = 1 + below(10);
    if (below(4) == 0) request.mask = std::make_shared<LateMask>(vocabulary);
    if (below(6) == 0) request.top_logprobs = 200;
    if (below(5) == 0) request.prompt_logprobs_from = below(static_cast<int32_t>(request.prompt.size()));
    if (below(8) == 0)
      request = {.prompt = request.prompt, .max_new_tokens = 0, .pooling = below(2) ? Pooling::mean : Pooling::last};
    return request;
  };
  EngineOptions one = options(1, 8192);
  one.prefix_cache = false;
  one.steps_in_flight = 0;
  const auto alone_engine = engine(one);
  std::vector<Bits> expected;
  std::vector<Request> known;
  std::vector<Tokens> answers;
  for (uint64_t i = 0; i < kRequests; ++i) {
    known.push_back(made(i));
    const Heard& heard = alone_engine->finish(made(i));
    expected.push_back(heard.bits);
    answers.push_back(heard.tokens);
  }

  int64_t retractions = 0;
  for (const int32_t depth : {0, 1, 2, 3, 4, 5}) {  // from 3 on with drafts, where a request may have them
    std::mt19937_64 random(static_cast<uint64_t>(depth));
    EngineOptions tight = options(7, kChunk);
    tight.mixed_chunk = 32;
    tight.max_total_tokens = 272;
    tight.context = 256;
    tight.steps_in_flight = depth % 3;
    if (depth >= 3) tight.make_drafter = knowing(known, answers, 0.8);
    const auto stepped = engine(tight);
    std::vector<RequestId> all;
    std::map<RequestId, bool> cancelled;
    for (int steps = 0; std::ssize(all) < kRequests || stepped->engine().step(); ++steps) {
      ASSERT_LT(steps, 20000);
      if (std::ssize(all) < kRequests) all.push_back(stepped->submit(made(all.size())));
      if (std::ssize(all) < kRequests) stepped->engine().step();
      if (random() % 200 != 0 || all.empty()) continue;
      const RequestId id = all[random() % all.size()];
      cancelled[id] = true;
      stepped->engine().cancel(id);
    }
    EXPECT_LT(cancelled.size(), all.size() / 2);
    for (size_t i = 0; i < all.size(); ++i) {
      const Heard& heard = stepped->heard(all[i]);
      if (heard.finish == Finish::cancelled) {
        EXPECT_TRUE(cancelled[all[i]]);
        continue;
      }
      EXPECT_EQ(heard.bits, expected[i]) << "request " << i << ", round " << depth;
    }
    const EngineStats stats = stepped->engine().stats();
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    EXPECT_EQ(stats.speculated.correct > 50, depth >= 3);
    retractions += stats.retractions;
  }
  EXPECT_GT(retractions, 0);
}

// --- drafts

// Greedy, drawn, with biases and stops that are not drawn at first; beside prompts in chunks, at every depth.
TEST_P(GpuDeterministic, DraftsChangeNoBit) {
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    requests.push_back(greedy(20 + 40 * static_cast<int32_t>(i), 70 + 5 * static_cast<int32_t>(i), 30 + i));
    requests.back().sampling.seed = i;
    if (i % 2 == 1) requests.back().sampling.temperature = 0.8f, requests.back().sampling.top_p = 0.9f;
    if (i % 4 == 2) requests.back().sampling.logit_bias = {{3, -100.0f}, {5, 1.0f}};
    if (i % 4 == 3) requests.back().stop_ids = {1}, requests.back().min_new_tokens = 200;
  }
  std::vector<Bits> expected;
  std::vector<Tokens> answers;
  for (const Request& request : requests) {
    expected.push_back(alone(request));
    Tokens& answer = answers.emplace_back();
    for (size_t i = 0; i < expected.back().size(); i += 4) answer.push_back(expected.back()[i].first);
  }
  for (const double right : {0.0, 0.5, 0.9, 1.0})
    for (const int32_t depth : {0, 1, 2}) {
      SCOPED_TRACE(cat("right ", right, ", ", depth, " steps in flight"));
      EngineOptions made = options(6, 64);
      made.steps_in_flight = depth;
      made.make_drafter = knowing(requests, answers, right);
      const auto stepped = engine(made);
      std::vector<RequestId> all;
      for (const Request& request : requests) all.push_back(stepped->submit(request));
      stepped->drain();
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(stepped->heard(all[i]).bits, expected[i]) << "request " << i;
      const Speculated speculated = stepped->engine().stats().speculated;
      EXPECT_GT(speculated.drafts, 100);
      EXPECT_EQ(speculated.correct > 30, right > 0);
      EXPECT_EQ(speculated.correct == 0, right == 0);
      EXPECT_EQ(speculated.correct == speculated.drafts, right == 1) << "a drafter that knows the answer";
    }
}

// A draw under penalties or a mask depends on the draws before it, which are not known when all are drawn at once.
TEST_P(GpuDeterministic, NothingIsDraftedWhereADrawDependsOnThoseBeforeIt) {
  Request penalised = greedy(60, 50), masked = greedy(60, 50, 2);
  penalised.sampling.frequency_penalty = 0.4f;
  masked.mask = std::make_shared<LateMask>(model_->config().vocabulary);
  EngineOptions made = options(2, 64);
  made.make_drafter = knowing({}, {}, 0);
  const auto stepped = engine(made);
  const RequestId one = stepped->submit(penalised);
  stepped->submit(masked);
  stepped->drain();
  EXPECT_EQ(stepped->heard(one).bits, alone(penalised));
  EXPECT_EQ(stepped->engine().stats().speculated.drafts, 0);
}

TinyModel tiny(int32_t width, int32_t ffn_width, BlockType type, const char* architecture = "llama") {
  return {.architecture = architecture,
          .layers = 2,
          .width = width,
          .ffn_width = ffn_width,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = width / 8,
          .context = kContext,
          .type = type};
}

// Matrices that the small kernel multiplies, the ring, the kernels of quantised weights, one of which is for one row,
// and heads that are normed before they are rotated.
INSTANTIATE_TEST_SUITE_P(, GpuDeterministic,
                         ::testing::Values(Kind{"Small", tiny(512, 768, BlockType::bf16)},
                                           Kind{"Ring", tiny(1024, 2560, BlockType::bf16)},
                                           Kind{"Quantised", tiny(512, 768, BlockType::q8_0)},
                                           Kind{"KQuantised", tiny(512, 768, BlockType::q4_k)},
                                           Kind{"NormedHeads", tiny(512, 768, BlockType::bf16, "qwen3")}),
                         [](const auto& parameter) { return parameter.param.name; });

}  // namespace
}  // namespace quire::engine
