#include "ops/candidates.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace quire::ops {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

std::span<const float> block_of(const LogitView& view, size_t block) {
  const size_t first = block * kLogitBlock;
  return view.logits.subspan(first, std::min<size_t>(kLogitBlock, view.logits.size() - first));
}

// A logit that at least `count` logits reach: the count-th largest of the blocks' largest.
float reached_by(const LogitView& view, int32_t count, std::vector<float>& bounds) {
  if (count > std::ssize(view.maxima)) return kNone;
  bounds.assign(view.maxima.begin(), view.maxima.end());
  const auto nth = bounds.begin() + count - 1;
  std::nth_element(bounds.begin(), nth, bounds.end(), std::greater<>());
  return *nth;
}

}  // namespace

Candidate likeliest(const LogitView& view) {
  const auto most = std::max_element(view.maxima.begin(), view.maxima.end());  // the first of equal ones
  const auto block = static_cast<size_t>(most - view.maxima.begin());
  const auto logits = block_of(view, block);
  const auto found = std::find(logits.begin(), logits.end(), *most);
  return {*most, static_cast<int32_t>(block * kLogitBlock + static_cast<size_t>(found - logits.begin()))};
}

void gather(const LogitView& view, float least, std::vector<Candidate>& out) {
  size_t count = 0;
  for (size_t block = 0; block < view.maxima.size(); ++block) {
    if (view.maxima[block] < least) continue;
    auto id = static_cast<int32_t>(block * kLogitBlock);
    out.resize(count + kLogitBlock);
    for (const float logit : block_of(view, block)) {
      out[count] = {logit, id++};
      count += logit >= least && logit > kNone;  // no branch: which are kept is hard to predict
    }
  }
  out.resize(count);
}

void gather_likeliest(const LogitView& view, int32_t count, std::vector<Candidate>& out, std::vector<float>& bounds) {
  out.clear();
  if (count == 0) return;
  gather(view, reached_by(view, count, bounds), out);
  if (static_cast<int32_t>(out.size()) < count) count = static_cast<int32_t>(out.size());
  std::nth_element(out.begin(), out.begin() + count - 1, out.end(), before);
  out.resize(static_cast<size_t>(count));
}

}  // namespace quire::ops
