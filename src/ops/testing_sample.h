// For tests of sampling: what a row asks for, with memory of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/sample.h"

namespace quire::ops::testing {

struct SampleRequest {
  std::vector<float> logits;
  SamplingParams params = {};
  std::vector<int32_t> prompt = {}, generated = {};
  int64_t position = 0;
  std::vector<uint32_t> mask = {};
  int32_t top_logprobs = -1;
  std::vector<int32_t> logprob_ids = {};
  int32_t scored = -1;  // this token is scored, none is drawn

  int32_t vocabulary() const { return static_cast<int32_t>(logits.size()); }
  bool allows(size_t id) const { return mask.empty() || (mask[id / 32] >> (id % 32) & 1) != 0; }
  bool penalises() const {
    return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
  }
  SampleRow row() const {
    return {.logits = logits.data(),
            .params = &params,
            .prompt = prompt,
            .generated = generated,
            .position = position,
            .mask = mask.empty() ? nullptr : mask.data(),
            .top_logprobs = top_logprobs,
            .logprob_ids = logprob_ids};
  }
};

}  // namespace quire::ops::testing
