// For tests: random schedules of requests of every kind over a model, and what each of them must give whatever happens
// around it: what it gives in an engine of its own, computed once, in one piece, without a cache and without drafts, to
// the bit.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/exec.h"
#include "engine/engine.h"
#include "engine/ngram_drafter.h"
#include "engine/step_device.h"
#include "engine/testing.h"
#include "model/testing.h"

namespace quire::engine::testing {

using Tokens = std::vector<int32_t>;
using Bits = std::vector<std::pair<int32_t, uint32_t>>;  // tokens with the bits of their logprobs

inline void append(Bits& bits, const TokenLogprob& logprob) {
  bits.emplace_back(logprob.token, std::bit_cast<uint32_t>(logprob.logprob));
  for (const auto& list : {logprob.top, logprob.wanted})
    for (const auto& [id, value] : list) bits.emplace_back(id, std::bit_cast<uint32_t>(value));
}

// A mask whose next tokens follow from all before: about one in four, and in some places only one. Holds its user to
// the rules: next, accept, and only what is allowed. Throws when it is asked once too often.
class HashMask final : public TokenMask {
 public:
  explicit HashMask(uint64_t seed, int32_t vocabulary, int most_asked = 1 << 30)
      : state_(seed), vocabulary_(vocabulary), most_asked_(most_asked), words_((vocabulary + 31) / 32) {}

  const uint32_t* next() override {
    EXPECT_FALSE(asked_since_) << "asked twice for one draw";
    asked_since_ = true;
    ++asked_;
    check(asked_ <= most_asked_, "the mask was asked ", asked_, " times");
    if (state_ % 7 == 0) return nullptr;
    std::mt19937_64 random(state_);
    for (uint32_t& word : words_) word = state_ % 5 == 0 ? 0 : static_cast<uint32_t>(random() & random());
    const auto always = static_cast<int32_t>(random() % vocabulary_);
    words_[always / 32] |= uint32_t{1} << always % 32;
    return words_.data();
  }
  void accept(int32_t token) override {
    EXPECT_TRUE(asked_since_) << "not asked before the draw";
    EXPECT_TRUE(state_ % 7 == 0 || (words_[token / 32] >> token % 32 & 1)) << "a token that was not allowed";
    asked_since_ = false;
    state_ = state_ * 6364136223846793005u + static_cast<uint64_t>(token) + 1442695040888963407u;
    state_ ^= state_ >> 29;
  }

 private:
  uint64_t state_;
  int32_t vocabulary_;
  int most_asked_, asked_ = 0;
  bool asked_since_ = false;
  std::vector<uint32_t> words_;
};

// What a listener heard of one request, the bits of its numbers included.
struct HeardBits {
  Tokens tokens;
  std::vector<uint32_t> logprobs;
  std::vector<std::pair<int32_t, uint32_t>> top;
  Bits all_logprobs;  // with those of logprob_ids
  std::vector<TokenLogprob> prompt_logprobs;
  Bits prompt_bits;
  std::vector<float> embedding;
  double queued = 0;
  Finish finish = Finish::none;
  int32_t cached = 0;
  Speculated speculated;
  std::string error;
  int ends = 0, events = 0;

  void hear(const Output& output) {
    EXPECT_EQ(ends, 0) << "request " << output.id << " was told more after its end";
    if (output.token >= 0) {
      tokens.push_back(output.token);
      logprobs.push_back(std::bit_cast<uint32_t>(output.logprobs.logprob));
    }
    for (const auto& [id, logprob] : output.logprobs.top) top.emplace_back(id, std::bit_cast<uint32_t>(logprob));
    append(all_logprobs, output.logprobs);
    EXPECT_EQ(output.generated, std::ssize(tokens));
    EXPECT_TRUE(output.prompt_logprobs.empty() || events == 0) << "with the first event";
    for (const TokenLogprob& logprob : output.prompt_logprobs) append(prompt_bits, logprob);
    if (++events == 1) prompt_logprobs = output.prompt_logprobs;
    embedding = output.embedding;
    queued = output.queued_seconds;
    finish = output.finish;
    cached = output.cached_tokens;
    speculated = output.speculated;
    error = output.error;
    ends += finish != Finish::none;
  }
  bool same_output(const HeardBits& other) const {
    return tokens == other.tokens && all_logprobs == other.all_logprobs && prompt_bits == other.prompt_bits &&
           embedding == other.embedding && finish == other.finish;
  }
  // The first tokens of the other.
  bool begins(const HeardBits& other) const {
    return tokens.size() <= other.tokens.size() && std::equal(tokens.begin(), tokens.end(), other.tokens.begin()) &&
           std::equal(logprobs.begin(), logprobs.end(), other.logprobs.begin());
  }
};

// An engine stepped by the test.
class SteppedEngine {
 public:
  SteppedEngine(const model::Model& model, const EngineOptions& options, const ExecOptions& exec,
                const StepDeviceMaker& make_device = {})
      : exec_(exec), engine_(model, options, exec_, make_device) {}

  RequestId submit(const Request& request) {
    return engine_.submit(request, [this](const Output& output) { heard_[output.id].hear(output); });
  }
  HeardBits finish(const Request& request) {
    const RequestId id = submit(request);
    drain();
    return heard_[id];
  }
  void drain() {
    for (int steps = 0; engine_.step(); ++steps) ASSERT_LT(steps, 20000);
  }
  Engine& engine() { return engine_; }
  const HeardBits& heard(RequestId id) { return heard_[id]; }

 private:
  Exec exec_;
  std::map<RequestId, HeardBits> heard_;  // outlives the engine, which tells the last ends
  Engine engine_;
};

// whole: the text with all that comes.
inline std::unique_ptr<Drafter> knowing_drafter(Tokens whole, double right, uint32_t seed,
                                                const KnowingTreeDrafter::Trees& trees) {
  if (trees.topk == 1) return std::make_unique<KnowingDrafter>(std::move(whole), right, seed);
  return std::make_unique<KnowingTreeDrafter>(std::move(whole), right, seed, trees);
}

// What random schedules are over.
struct Scheduled {
  const model::Model& model;
  const model::EagleHead& head;
  ExecOptions exec = {};
  std::vector<Dtype> kv_types = {Dtype::bf16};
  std::vector<int32_t> page_sizes = {1, 16, 32, 64, 128};
  bool head_in_all = false;
  int32_t drafters = 6;  // of so many schedules one has the own text's drafts, and four those of somebody who knows
  StepDeviceMaker make_device = {};  // but for requests alone
};

// Requests come and are cancelled while others run; pages are too few for them, or not; drafts are the head's, the own
// text's or those of somebody who knows the answer and says so more or less often, in chains and trees. A GPU is
// deterministic, and has trees where it has a head.
class RandomSchedule {
 public:
  static constexpr int32_t kContext = 256, kRequests = 14;

  RandomSchedule(const Scheduled& over, uint32_t seed) : over_(over), random_(seed), options_(random_options()) {
    EngineOptions alone;
    alone.context = kContext;
    alone.max_total_tokens = 4 * kContext;
    alone.max_running_requests = 1;
    alone.max_queued_requests = 100;
    alone.prefix_cache = false;
    alone.kv_type = options_.kv_type;
    alone.deterministic = options_.deterministic;
    if (is_on_gpu()) alone.page_size = options_.page_size;  // by which kernels are chosen
    alone_ = std::make_unique<SteppedEngine>(over.model, alone, exec(1));
    for (int i = 0; i < 2; ++i) themes_.push_back(random_ids(kContext));
  }

  void run() {
    SCOPED_TRACE(cat(options_.max_total_tokens, " tokens of ", to_string(options_.kv_type), " in pages of ",
                     options_.page_size, ", running ", options_.max_running_requests, ", chunks ",
                     options_.prefill_chunk, " and ", options_.mixed_chunk, ", steps in flight ",
                     options_.steps_in_flight, ", topk ", options_.speculative_eagle_topk, " of up to ",
                     options_.speculative_num_draft_tokens, options_.head ? ", a head" : "",
                     options_.make_drafter ? cat(", drafts right in ", right_) : std::string()));
    SteppedEngine stepped(over_.model, options_, exec(1 + below(3)), over_.make_device);
    std::map<RequestId, Asked> requests;
    std::map<RequestId, bool> cancelled;
    for (int come = 0, steps = 0; come < kRequests || stepped.engine().step(); ++steps) {
      ASSERT_LT(steps, 20000);
      if (come < kRequests && below(2) == 0) {
        Asked asked = random_request();
        asked.alone = alone_->finish(with_mask(asked));
        answers_.push_back(asked.alone.tokens);
        requests.emplace(stepped.submit(with_mask(asked)), asked);
        ++come;
      }
      if (come < kRequests) stepped.engine().step();
      if (below(150) == 0 && !requests.empty()) {
        const RequestId id = 1 + below(static_cast<int32_t>(requests.size()));
        cancelled[id] = true;
        stepped.engine().cancel(id);
      }
    }
    for (const auto& [id, asked] : requests) expect_same(stepped.heard(id), asked, cancelled[id]);
    const EngineStats stats = stepped.engine().stats();
    EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
    retractions += stats.retractions;
    cached += stats.cached_prompt_tokens;
    speculated.add(stats.speculated);
    by_head += stats.speculated_by_model.correct;
  }

  int64_t retractions = 0, cached = 0, cancelled_in_time = 0, by_head = 0;
  Speculated speculated;

 private:
  struct Asked {
    Request request;
    uint64_t mask_seed = 0;  // 0: no mask
    int mask_ends = 1 << 30;
    HeardBits alone = {};
  };

  bool is_on_gpu() const { return over_.exec.stream != nullptr; }
  ExecOptions exec(int threads) const {
    ExecOptions options = over_.exec;
    options.threads = threads;
    return options;
  }
  int32_t below(int32_t limit) { return std::uniform_int_distribution<int32_t>(0, limit - 1)(random_); }
  template <class T>
  T one_of(const std::vector<T>& choices) {
    return choices[below(static_cast<int32_t>(choices.size()))];
  }
  int32_t vocabulary() const { return over_.model.config().vocabulary; }
  Tokens random_ids(int32_t count) { return model::testing::random_ids(count, vocabulary(), random_()); }

  // Each run has a mask of its own, at its beginning.
  Request with_mask(const Asked& asked) const {
    Request request = asked.request;
    if (asked.mask_seed) request.mask = std::make_shared<HashMask>(asked.mask_seed, vocabulary(), asked.mask_ends);
    return request;
  }

  EngineOptions random_options() {
    EngineOptions options;
    options.context = kContext;
    options.deterministic = is_on_gpu();
    options.page_size = one_of(over_.page_sizes);
    options.kv_type = one_of(over_.kv_types);
    options.max_total_tokens = kContext + below(below(3) ? kContext / 2 : 6 * kContext);
    options.max_running_requests = 1 + below(8);
    options.prefill_chunk = 1 + below(64);
    options.mixed_chunk = 1 + below(32);
    options.prefix_cache = below(5) > 0;
    options.steps_in_flight = below(3);
    options.speculative_num_draft_tokens = 2 + below(12);
    options.speculative_eagle_topk = 1 + below(4);
    options.speculative_num_steps = options.speculative_eagle_topk > 1 ? 4 + below(3) : 0;
    // None, by the own text, by one that knows the answer more or less.
    const int drafters = below(over_.drafters);
    if (drafters == 1) options.make_drafter = ngram_drafters();
    right_ = one_of<double>({0, 0.25, 0.5, 0.75, 0.9, 1});
    if (drafters > 1 && drafters < 6)
      options.make_drafter = [this, topk = options.speculative_eagle_topk](const Request& request) {
        Tokens whole = request.prompt;
        whole.insert(whole.end(), answers_.front().begin(), answers_.front().end());
        answers_.pop_front();
        return knowing_drafter(std::move(whole), right_, static_cast<uint32_t>(random_()), {.topk = topk});
      };
    if (below(2) == 0 || over_.head_in_all) options.head = &over_.head;
    return options;
  }
  Asked random_request() {
    const int32_t length = 1 + below(120), shared = below(3) ? length - below(std::min(length, 20)) : 0;
    const Tokens& theme = themes_[below(2)];
    Request request{.prompt = Tokens(theme.begin(), theme.begin() + shared),
                    .sampling = random_sampling(),
                    .max_new_tokens = below(4) ? 100 + below(100) : below(20),
                    .priority = below(3) - 1,
                    .top_logprobs = below(4) - 1};
    const Tokens own = random_ids(length - shared);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    if (below(6) == 0) {
      request.max_new_tokens = 0;
      request.pooling = below(2) ? Pooling::mean : Pooling::last;
    } else if (below(3) == 0) {
      request.prompt_logprobs_from = below(2) ? below(length) : 0;
    }
    if (below(3) == 0) request.logprob_ids = {below(vocabulary()), below(vocabulary())};
    if (below(3) == 0) {
      for (int i = 0; i < 6; ++i) request.stop_ids.push_back(below(vocabulary()));
      request.min_new_tokens = below(40);
    }
    Asked asked{.request = std::move(request)};
    if (below(3) == 0) asked.mask_seed = random_() | 1;
    if (below(4) == 0) asked.mask_ends = below(30);
    return asked;
  }
  ops::SamplingParams random_sampling() {
    ops::SamplingParams params{.temperature = one_of<float>({0, 0, 0.5f, 0.8f, 1, 1.5f}), .seed = random_()};
    if (below(2) == 0) params.top_k = 40;
    if (below(2) == 0) params.top_p = 0.95f;
    if (below(3) == 0) params.min_p = 0.02f * static_cast<float>(1 + below(10));
    if (below(2) == 0) params.repetition_penalty = 1.1f, params.frequency_penalty = 0.2f;
    if (below(3) == 0)
      for (int i = 0; i < 4; ++i) params.logit_bias.emplace_back(below(vocabulary()), one_of<float>({-100, -1, 2, 4}));
    return params;
  }

  void expect_same(const HeardBits& heard, const Asked& asked, bool cancelled) {
    const Request& request = asked.request;
    SCOPED_TRACE(cat("prompt of ", request.prompt.size(), ", new ", request.max_new_tokens, ", temperature ",
                     request.sampling.temperature));
    const HeardBits& alone = asked.alone;
    EXPECT_EQ(heard.ends, 1);
    if (heard.finish == Finish::cancelled) {
      EXPECT_TRUE(cancelled);
      EXPECT_TRUE(heard.begins(alone));
      ++cancelled_in_time;
    } else {
      EXPECT_TRUE(heard.same_output(alone));
      EXPECT_EQ(heard.tokens, alone.tokens);
      EXPECT_EQ(heard.error, alone.error);
    }
  }

  const Scheduled& over_;
  std::mt19937 random_;
  double right_ = 0;  // of those who know the answer
  EngineOptions options_;
  std::unique_ptr<SteppedEngine> alone_;
  std::deque<Tokens> answers_;  // of those that come, for their drafters
  std::vector<Tokens> themes_;
};

}  // namespace quire::engine::testing
