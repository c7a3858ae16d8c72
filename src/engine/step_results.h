// What came of a planned step, in the order of its shares.
#pragma once
#include <span>
#include <string>

#include "base/tensor.h"
#include "engine/batch.h"
#include "ops/sample.h"

namespace quire::engine {

struct RowResult {
  ops::Sampled sampled = {};
  std::string error = {};  // why this row's request cannot go on; empty: it can
  bool refused = false;    // the error is the request's own fault
  bool late = false;       // its mask was not ready: nothing was drawn, and the row has to be computed again
};

struct StepResults {
  std::span<RowResult> drawn = {};   // [draws]
  std::span<RowResult> scored = {};  // [scored]
  Rows<const float> pooled = {};     // [pooled, width]

  // Those of the first share, which are no longer here afterwards.
  StepResults take(const Share& share) {
    const StepResults own{.drawn = drawn.first(share.draws),
                          .scored = scored.first(share.scored()),
                          .pooled = {pooled.data, share.pooled(), pooled.dim, pooled.stride}};
    drawn = drawn.subspan(own.drawn.size());
    scored = scored.subspan(own.scored.size());
    pooled = {pooled.row(own.pooled.rows), pooled.rows - own.pooled.rows, pooled.dim, pooled.stride};
    return own;
  }
};

}  // namespace quire::engine
