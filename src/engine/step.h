// A step: what is computed, and what came of it. The engine launches steps in order and settles them in the same order,
// up to so many later as its device answers late; until then a step is in flight (scheduler.h).
#pragma once
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "engine/batch.h"
#include "ops/sample.h"

namespace quire::engine {

struct RowResult {
  // A scored row's one; those that were drawn, in order: none where the mask was not ready, so that the row has to be
  // computed again, and none in rows of drafts that did not come or that a stop id stands before; several of a share
  // only for a request without another share in flight.
  std::vector<ops::Sampled> tokens = {};
  std::string error = {};  // why this row's request cannot go on; empty: it can
  bool refused = false;    // the error is the request's own fault

  void clear() {  // keeps the memory
    tokens.clear();
    error.clear();
    refused = false;
  }
};

struct StepResults {
  std::vector<RowResult> drawn = {}, scored = {};  // as the batch lists them
  std::vector<float> pooled = {};                  // [pooled, width]
  int32_t width = 0;
  std::chrono::duration<double> time = {};                 // that the device computed; 0: not measured
  std::chrono::duration<double> following = {};            // part of it: a draft model's, for those that it follows
  std::optional<std::chrono::duration<double>> idle = {};  // that it did nothing since the step before
  bool overlapped = false;                                 // launched before that one was read

  void set_pooled(const Rows<const float>& rows) {
    width = static_cast<int32_t>(rows.dim);
    pooled.clear();
    for (int64_t i = 0; i < rows.rows; ++i) pooled.insert(pooled.end(), rows.row(i), rows.row(i) + width);
  }

  struct OfShare {
    std::span<RowResult> drawn, scored;
    Rows<const float> pooled;
  };
  OfShare of(const Share& share) {
    return {.drawn = std::span(drawn).subspan(share.drawn.begin, share.drawn.count),
            .scored = std::span(scored).subspan(share.scored.begin, share.scored.count),
            .pooled = {pooled.data() + int64_t{share.pooled.begin} * width, share.pooled.count, width, width}};
  }
};

// Which of a share's drawn rows gave tokens: the path that the walk took through its drafts, from row 0, its text's
// last.
inline std::vector<int32_t> walked_rows(const Share& share, const StepResults& results) {
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < share.drawn.count; ++i)
    if (!results.drawn[share.drawn.begin + i].tokens.empty()) rows.push_back(i);
  return rows;
}

struct Step {
  Batch batch = {};
  StepResults results = {};
  std::string error = {};  // why it could not be computed; empty: it was
};

}  // namespace quire::engine
