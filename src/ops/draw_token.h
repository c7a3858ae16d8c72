// The random half of sampling: temperature, top-k, top-p, min-p and the draw.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/candidates.h"
#include "ops/sample.h"

namespace quire::ops {

struct DrawScratch {
  std::vector<double> sums;  // [logit_blocks(vocabulary)]
  std::vector<Candidate> candidates;
  std::vector<float> bounds;
};

// The token that `random`, in [0, 1), draws. The temperature is above 0 and some logit above -inf.
int32_t draw_token(const LogitView& view, const SamplingParams& params, double random, const LogitScan& scan,
                   DrawScratch& scratch);

}  // namespace quire::ops
