// For tests: an engine of either device with its model, stepped by the test, and what it tells of each request.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/cuda.h"
#include "base/exec.h"
#include "engine/engine.h"
#include "model/model.h"

namespace quire::engine::testing {

struct Heard {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  std::vector<float> embedding;
  Finish finish = Finish::none;
  std::string error;
  int ends = 0;

  void hear(const Output& output) {
    EXPECT_EQ(ends, 0) << "told more after its end";
    if (output.token >= 0) tokens.push_back(output.token);
    if (output.token >= 0) logprobs.push_back(output.logprobs);
    if (!output.prompt_logprobs.empty()) prompt_logprobs = output.prompt_logprobs;
    embedding = output.embedding;
    finish = output.finish;
    error = output.error;
    ends += finish != Finish::none;
  }
};

// stream: null: the CPU's. threads: 0: all cores.
class Side {
 public:
  Side(const std::string& path, const EngineOptions& options, cuda::Stream* stream, int threads = 2)
      : exec_({.threads = threads, .stream = stream}), model_(path, exec_), engine_(model_, options, exec_) {}

  RequestId submit(const Request& request) {
    return engine_.submit(request, [this](const Output& output) { heard_[output.id].hear(output); });
  }
  void drain() {
    for (int steps = 0; engine_.step(); ++steps) ASSERT_LT(steps, 20000);
  }
  Heard finish(const Request& request) {
    const RequestId id = submit(request);
    drain();
    return heard_[id];
  }
  const Heard& heard(RequestId id) { return heard_[id]; }
  Engine& engine() { return engine_; }
  const model::Model& model() const { return model_; }

 private:
  Exec exec_;
  model::Model model_;
  std::map<RequestId, Heard> heard_;
  Engine engine_;
};

}  // namespace quire::engine::testing
