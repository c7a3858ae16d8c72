// What a request wants of its own prompt, gathered while the prompt is computed: the logprobs of its tokens, or its
// rows pooled into one vector.
//
//   prompt      t0   t1   t2   t3   t4          the row of position p tells how likely token p + 1 was
//   logprobs         r0   r1   r2   r3          from position 0 on; that of t0 is 0
//   mean        r0   r1   r2   r3   r4
//   last                            r4
//
// Rows come in ascending order, each once: how the prompt is cut into chunks, which of them a cached prefix spares and
// how often the request is retracted does not show in the result, to the bit. Sums are in double.
//
// Errors   a row that holds NaN or infinity throws CheckError.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "ops/sample.h"

namespace quire::engine {

struct PositionRange {
  int32_t begin = 0, end = 0;

  bool empty() const { return begin >= end; }
  int32_t count() const { return empty() ? 0 : end - begin; }
  PositionRange before(int32_t position) const { return {begin, end < position ? end : position}; }
};

TokenLogprob as_logprob(ops::Sampled sampled);

class PromptResults {
 public:
  PromptResults() = default;  // nothing is wanted
  PromptResults(const Request& request, std::span<const int32_t> prompt);

  PositionRange missing() const { return missing_; }  // rows that are wanted and have not come
  bool pools() const { return pools_; }               // wants the rows themselves; else their logits

  void add(ops::Sampled scored);             // of the first missing row: the token after it
  void add_row(std::span<const float> row);  // the first missing one itself

  std::vector<TokenLogprob> take_logprobs();  // when none is missing; there are none afterwards
  std::vector<float> embedding() const;       // empty where none is wanted

 private:
  PositionRange missing_;
  bool pools_ = false;
  std::vector<TokenLogprob> logprobs_;
  std::vector<double> sum_;  // [width] of the rows so far
};

}  // namespace quire::engine
