#include "ops/draw_token.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/logit_weight.h"

namespace quire::ops {
namespace {

// Everything that stays is at or before the cut in the order of likelihood.
constexpr Candidate kNoCut{-std::numeric_limits<float>::infinity(), std::numeric_limits<int32_t>::max()};

// Passes shares in order, each taken from what is left, until one holds the rest; returns its index. Where rounding
// carried past the end, the last that is not empty.
template <class ShareOf>
size_t walk_shares(size_t first, size_t end, double& left, ShareOf share_of) {
  size_t found = first;
  for (size_t i = first; i < end; ++i) {
    const double share = share_of(i);
    if (share == 0) continue;
    found = i;
    if (share > left) break;
    left -= share;
  }
  return found;
}

// A logit that every token with at least this weight reaches, whatever was rounded on the way.
float logit_of_weight(double weight, const WeightScale& scale) {
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  const double logit = std::max(kLowest, scale.top + std::log2(weight) / scale.per_logit);
  return std::nextafter(static_cast<float>(logit), -std::numeric_limits<float>::infinity());
}

double total_weight(std::span<const Candidate> candidates, const WeightScale& scale) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += logit_weight(candidate.logit, scale);
  return total;
}

Candidate top_k_cut(const LogitView& view, int32_t k, DrawScratch& scratch) {
  gather_likeliest(view, k, scratch.candidates, scratch.bounds);
  return scratch.candidates.back();
}

// By ascending id.
void gather_to_cut(const LogitView& view, const Candidate& cut, std::vector<Candidate>& out) {
  gather(view, cut.logit, out);
  std::erase_if(out, [&](const Candidate& candidate) { return before(cut, candidate); });
}

// The candidate at which the likeliest first reach the weight. Halves what is left, by likelihood, until so little is
// left that sorting it is nothing.
Candidate cut_at_weight(std::span<Candidate> rest, double wanted, const WeightScale& scale) {
  constexpr size_t kFew = 64;
  while (rest.size() > kFew) {
    const auto front = rest.first(rest.size() / 2);
    std::nth_element(front.begin(), front.end(), rest.end(), before);
    const double weight = total_weight(front, scale);
    if (weight < wanted) {
      wanted -= weight;
      rest = rest.subspan(front.size());
    } else {
      rest = front;
    }
  }
  std::sort(rest.begin(), rest.end(), before);
  for (const Candidate& candidate : rest) {
    wanted -= logit_weight(candidate.logit, scale);
    if (wanted <= 0) return candidate;
  }
  return rest.back();  // rounding kept the sum of all below what was wanted
}

// Candidates that together have the wanted part of the total: all from a weight on, which sinks until they suffice.
void gather_weight(const LogitView& view, double part, double total, const WeightScale& scale,
                   std::vector<Candidate>& out) {
  // Even all together, tokens below this weight do not make up the part that may be missing.
  const double negligible = (1 - part) * total / static_cast<double>(view.logits.size());
  for (double least = 1.0 / 64;; least /= 64) {
    gather(view, logit_of_weight(std::max(least, negligible), scale), out);
    if (least <= negligible || total_weight(out, scale) >= part * total) return;
  }
}

Candidate top_p_cut(const LogitView& view, double top_p, const Candidate& cut, const WeightScale& scale,
                    const LogitScan& scan, DrawScratch& scratch) {
  double total = 0;
  if (cut.id != kNoCut.id) {
    gather_to_cut(view, cut, scratch.candidates);
    total = total_weight(scratch.candidates, scale);
  } else {
    total = sum_weights(view, scale, scan, scratch.sums);
    gather_weight(view, top_p, total, scale, scratch.candidates);
  }
  return cut_at_weight(scratch.candidates, top_p * total, scale);
}

int32_t draw_among(std::span<const Candidate> candidates, double random, const WeightScale& scale) {
  double left = random * total_weight(candidates, scale);
  const auto weight = [&](size_t i) { return logit_weight(candidates[i].logit, scale); };
  return candidates[walk_shares(0, candidates.size(), left, weight)].id;
}

// Whole blocks are passed by their sums, so the weights of one block only are computed twice.
int32_t draw_from_all(const LogitView& view, double random, const WeightScale& scale, const LogitScan& scan,
                      DrawScratch& scratch) {
  double left = random * sum_weights(view, scale, scan, scratch.sums);
  const auto sum = [&](size_t block) { return scratch.sums[block]; };
  const auto weight = [&](size_t id) { return logit_weight(view.logits[id], scale); };
  const size_t first = walk_shares(0, scratch.sums.size(), left, sum) * kLogitBlock;
  const size_t end = std::min(first + kLogitBlock, view.logits.size());
  return static_cast<int32_t>(walk_shares(first, end, left, weight));
}

}  // namespace

int32_t draw_token(const LogitView& view, const SamplingParams& params, double random, const LogitScan& scan,
                   DrawScratch& scratch) {
  const WeightScale scale{.top = likeliest(view).logit, .per_logit = std::numbers::log2e / params.temperature};
  const bool has_top_k = params.top_k > 0 && params.top_k < std::ssize(view.logits);
  if (!has_top_k && params.top_p == 1 && params.min_p == 0) return draw_from_all(view, random, scale, scan, scratch);
  Candidate cut = has_top_k ? top_k_cut(view, params.top_k, scratch) : kNoCut;
  if (params.top_p < 1) cut = top_p_cut(view, params.top_p, cut, scale, scan, scratch);
  const float least = params.min_p > 0 ? logit_of_weight(params.min_p, scale) : cut.logit;
  gather(view, std::max(cut.logit, least), scratch.candidates);
  std::erase_if(scratch.candidates, [&](const Candidate& candidate) {
    return before(cut, candidate) || logit_weight(candidate.logit, scale) < params.min_p;
  });
  return draw_among(scratch.candidates, random, scale);
}

}  // namespace quire::ops
