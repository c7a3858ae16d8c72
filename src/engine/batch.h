// The rows that one step computes: for each chosen request, the next `count` tokens after those in its pages.
//
// The scheduler fills it, the runner turns it into logits, the engine samples, the scheduler takes the result.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace quire::engine {

struct Share {
  Sequence* sequence;
  int32_t count;      // tokens [computed, computed + count); their pages are reserved
  bool wants_logits;  // of its last row: a token is to be drawn
};

struct Batch {
  std::vector<Share> shares;  // single tokens first, then chunks of prompts
  int32_t rows = 0;           // of all shares together
  int32_t logits = 0;         // shares that want logits

  bool empty() const { return shares.empty(); }
  bool only_single_tokens() const { return rows == static_cast<int32_t>(shares.size()); }
};

}  // namespace quire::engine
