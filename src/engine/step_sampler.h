// A step's logits become tokens and logprobs: each row for itself, in parallel.
//
// A row that draws does so under its request's mask (ahead_masks.h) if that is ready; else it is late. A row of a
// prompt is only scored. What a row cannot do, a mask's exception included, is said in its own result and touches no
// other.
#pragma once
#include <cstdint>
#include <vector>

#include "base/exec.h"
#include "base/tensor.h"
#include "engine/step.h"
#include "ops/sample.h"

namespace quire::engine {

class StepSampler {
 public:
  StepSampler(int32_t vocabulary, Exec& exec);  // exec outlives it

  // logits: of the batch's drawn rows, then of its scored ones. Pooled rows are not its business. results may be those
  // of an earlier step, whose memory is used again.
  void run(const Batch& batch, Rows<const float> logits, StepResults& results);

 private:
  ops::Sampled draw(const Batch& batch, const Share& share, const float* logits, int thread);
  ops::Sampled score(const Share& share, int32_t token, const float* logits, int thread);

  int32_t vocabulary_;
  Exec& exec_;
  ops::Sampler sampler_;
  std::vector<std::vector<uint32_t>> masks_;  // [threads] scratch
};

}  // namespace quire::engine
