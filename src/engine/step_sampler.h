// A step's logits become tokens and logprobs: each row for itself, in parallel.
//
// A row that draws does so under its request's mask (ahead_masks.h), which is ready, unless its share sits out. A row
// of a prompt is only scored. What a row cannot do, a mask's exception included, is said in its own result and touches
// no other.
//
// Drafts are walked (drafter.h): where a draw gives one of the drafts that follow its row, the row of that draft draws
// next, as the text with that token would; the first that gives another, a stop id, or whose mask is not ready in time
// ends the walk.
// Walks go on together, a draft at a time, so that their masks are computed beside each other.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/exec.h"
#include "base/tensor.h"
#include "engine/ahead_masks.h"
#include "engine/step.h"
#include "engine/step_device.h"
#include "ops/sample.h"

namespace quire::engine {

class StepSampler {
 public:
  // masks and exec outlive it; so long a step waits, in all, for those that its walks need next.
  StepSampler(int32_t vocabulary, MaskThreads& masks, Exec& exec, std::chrono::microseconds patience = kMaskPatience);

  // logits: of the batch's drawn rows, then of its scored ones. Pooled rows are not its business. results may be those
  // of an earlier step, whose memory is used again.
  void run(const Batch& batch, Rows<const float> logits, StepResults& results);

 private:
  struct Walk {
    const Share* share;
    int32_t accepted;  // drafts that came
    int32_t row;       // of the share's drawn ones, in which the walk is: that of the last of them
  };
  void begin_walks(const Batch& batch);
  using Deadline = std::chrono::steady_clock::time_point;
  bool go_on(const Batch& batch, const StepResults& results, Deadline deadline);
  static int32_t next_row(const Batch& batch, const Walk& walk, const StepResults& results);
  void draw_rows(const Batch& batch, Rows<const float> logits, StepResults& results, int64_t scored);
  ops::Sampled draw(const Walk& walk, const float* logits, int thread);
  ops::Sampled score(const Share& share, int32_t token, const float* logits, int thread);

  int32_t vocabulary_;
  MaskThreads& mask_threads_;
  std::chrono::microseconds patience_;
  Exec& exec_;
  ops::Sampler sampler_;
  std::vector<Walk> walks_;                   // those that go on
  std::vector<int32_t> history_;              // the batch's, with what came in the place of its drafts
  std::vector<std::vector<uint32_t>> masks_;  // [threads] scratch
};

}  // namespace quire::engine
