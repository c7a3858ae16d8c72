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
#include "engine/step_results.h"
#include "ops/sample.h"

namespace quire::engine {

class StepSampler {
 public:
  StepSampler(int32_t vocabulary, Exec& exec);  // exec outlives it

  // logits: rows that draw, then rows that are scored, in the order of the shares. Valid until the next run; pooled
  // rows are not its business.
  StepResults run(const Batch& batch, Rows<const float> logits);

 private:
  struct Row {
    Sequence* sequence;
    int32_t scored;  // the token whose logprobs are wanted; -1: one is drawn
  };
  void list_rows(const Batch& batch);
  RowResult result_of(const Row& row, const float* logits, int thread);
  ops::Sampled compute(const Row& row, const float* logits, int thread);
  ops::Sampled draw(Sequence& sequence, const float* logits, int thread);

  int32_t vocabulary_;
  Exec& exec_;
  ops::Sampler sampler_;
  std::vector<std::vector<uint32_t>> masks_;  // [threads] scratch
  std::vector<Row> rows_;
  std::vector<RowResult> results_;
};

}  // namespace quire::engine
