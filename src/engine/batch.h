// The rows that one step computes: for each chosen request, the next `count` tokens after those in its pages.
//
// The scheduler fills it, the runner turns it into logits and last rows, the sampler into tokens and logprobs, the
// scheduler takes the results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/sequence.h"

namespace quire::engine {

struct Share {
  Sequence* sequence;
  int32_t count;            // tokens [computed, computed + count); their pages are reserved
  bool draws = false;       // a token, from the logits of its last row
  PositionRange kept = {};  // rows among them that its PromptResults wants

  int32_t scored() const { return sequence->results.pools() ? 0 : kept.count(); }
  int32_t pooled() const { return sequence->results.pools() ? kept.count() : 0; }
};

struct Batch {
  std::vector<Share> shares = {};             // single tokens first, then chunks of prompts
  int32_t rows = 0;                           // of all shares together
  int32_t draws = 0, scored = 0, pooled = 0;  // those of them that are wanted

  bool empty() const { return shares.empty(); }
  bool only_single_tokens() const { return rows == static_cast<int32_t>(shares.size()); }
  int32_t wanted_rows() const { return draws + scored + pooled; }

  void clear() {
    shares.clear();
    rows = draws = scored = pooled = 0;
  }
  void add(const Share& share) {
    count(share, 1);
    shares.push_back(share);
  }
  void remove(const Sequence& sequence) {
    const auto share =
        std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.sequence == &sequence; });
    if (share == shares.end()) return;
    count(*share, -1);
    shares.erase(share);
  }

 private:
  void count(const Share& share, int32_t times) {
    rows += times * share.count;
    draws += times * share.draws;
    scored += times * share.scored();
    pooled += times * share.pooled();
  }
};

}  // namespace quire::engine
