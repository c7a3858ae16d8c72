// Clients of an engine that is stepped by hand, as benchmarks want them: each notes when its tokens came.
#pragma once
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "timing.h"

namespace quire::bench {

using Clock = std::chrono::steady_clock;

class ModelClient {
 public:
  // Submits at once. Greedy, and no token ends the text: exactly new_tokens come.
  ModelClient(engine::Engine& engine, std::vector<int32_t> prompt, int32_t new_tokens)
      : engine_(engine), asked_(Clock::now()) {
    engine::Request request;
    request.prompt = std::move(prompt);
    request.sampling.temperature = 0;
    request.max_new_tokens = new_tokens;
    id_ = engine.submit(std::move(request), [this](const engine::Output& output) { hear(output); });
  }
  ModelClient(const ModelClient&) = delete;
  ModelClient& operator=(const ModelClient&) = delete;

  ~ModelClient() {  // the engine holds a listener that points here
    engine_.cancel(id_);
    while (!finished_ && engine_.step()) {
    }
  }

  bool finished() const { return finished_; }
  Clock::time_point asked() const { return asked_; }
  const std::vector<Clock::time_point>& times() const { return times_; }  // of its tokens
  double first_seconds() const { return seconds_between(asked_, times_.front()); }

  void step_until_tokens(size_t count) const {
    step_until([&] { return times_.size() >= count; });
  }
  void step_until_finished() const {
    step_until([&] { return finished_; });
  }

 private:
  void hear(const engine::Output& output) {
    if (output.token >= 0) times_.push_back(Clock::now());
    finished_ = output.finish != engine::Finish::none;
    failed_ = output.finish == engine::Finish::failed;
  }

  template <class Reached>
  void step_until(Reached&& reached) const {
    while (!reached()) {
      check(engine_.step() || reached(), "the engine is idle before a benchmark's request is done");
      check(!failed_, "a benchmark's request failed");
    }
  }

  engine::Engine& engine_;
  engine::RequestId id_;
  Clock::time_point asked_;
  std::vector<Clock::time_point> times_;
  bool finished_ = false;
  bool failed_ = false;
};

// Seeded token ids, others with every call.
class PromptMaker {
 public:
  explicit PromptMaker(int32_t vocabulary) : ids_(0, vocabulary - 1) {}

  std::vector<int32_t> make(int32_t tokens) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (int32_t& id : prompt) id = ids_(random_);
    return prompt;
  }
  std::vector<int32_t> continue_from(std::vector<int32_t> prefix, int32_t tokens) {
    for (const int32_t id : make(tokens)) prefix.push_back(id);
    return prefix;
  }

 private:
  std::mt19937 random_{1};
  std::uniform_int_distribution<int32_t> ids_;
};

}  // namespace quire::bench
