// Tokens picked from a vocabulary by their logits, without looking at those that cannot matter: a block of logits whose
// largest is too small is skipped.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/logit_view.h"

namespace quire::ops {

struct Candidate {
  float logit;
  int32_t id;
};
// The order of likelihood: larger logits first, equal ones by id.
inline bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The first in the order of likelihood.
Candidate likeliest(const LogitView& view);

// All with a logit of at least `least`, except those at -inf, by ascending id.
void gather(const LogitView& view, float least, std::vector<Candidate>& out);

// The first `count` in the order of likelihood, fewer when fewer are above -inf; the last of them lies last, the others
// in any order. bounds is scratch.
void gather_likeliest(const LogitView& view, int32_t count, std::vector<Candidate>& out, std::vector<float>& bounds);

}  // namespace quire::ops
