#include "engine/draft_record.h"

#include <algorithm>

#include "engine/draft_tree.h"

namespace quire::engine {

// Until something is known, a model is believed.
DraftRates::DraftRates() {
  constexpr double kFirst = 16;  // trials that this is worth
  for (int32_t bin = 0; bin < kBins; ++bin) counts_[bin] = {kFirst * (bin + 0.5) / kBins, kFirst};
}

int32_t DraftRates::bin_of(float said) {
  return std::clamp(static_cast<int32_t>(said * static_cast<float>(kBins)), 0, kBins - 1);
}

double DraftRates::rate(float said) const {
  const Count& count = counts_[bin_of(said)];
  return count.hits / count.trials;
}

void DraftRates::count(float said, bool came) {
  constexpr double kMostTrials = 4096;
  Count& of = counts_[bin_of(said)];
  of.hits += came;
  of.trials += 1;
  if (of.trials < kMostTrials) return;
  of.hits /= 2;
  of.trials /= 2;
}

void DraftRecord::learn(std::span<const int32_t> text) {
  constexpr double kForgets = 0.97;
  const auto drafts = static_cast<int32_t>(proposed_.size());
  for (int32_t at = -1, next = 0; next < drafts && known_ < text.size(); at = next, ++known_) {
    next = drafts;  // the draft behind `at` that came
    for (int32_t i = at + 1; i < drafts; ++i) {
      if (parent_of(proposed_, i) != at) continue;
      const bool came = proposed_[i].token == text[known_];
      came_ = kForgets * came_ + came;
      expected_ = kForgets * expected_ + rates_->rate(proposed_[i].hit);
      rates_->count(proposed_[i].hit, came);
      if (came) next = i;
    }
  }
  proposed_.clear();
}

void DraftRecord::propose(std::span<const int32_t> text, std::span<const DraftToken> drafts) {
  known_ = text.size();
  proposed_.assign(drafts.begin(), drafts.end());
}

float DraftRecord::hit(float said) const {
  const double luck = std::clamp(came_ / expected_, 0.5, 1.0);
  return static_cast<float>(std::min(0.99, rates_->rate(said) * luck));
}

}  // namespace quire::engine
