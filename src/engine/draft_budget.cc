#include "engine/draft_budget.h"

#include <algorithm>

namespace quire::engine {
namespace {

// A rate that is higher by less than this may be chance, and drafts are work.
constexpr double kLeastGain = 1.02;

}  // namespace

void DraftBudget::cut(const StepAhead& step, std::span<std::vector<DraftToken>* const> chains) {
  order_by_path(chains, step.most);
  int32_t chosen = those_that_pay(step, 1);
  if (chosen == 0 && !choices_.empty() && ++without_ >= kProbe) chosen = those_that_pay(step, 0.5);
  if (chosen > 0) without_ = 0;
  std::vector<size_t> lengths(chains.size());
  for (int32_t i = 0; i < chosen; ++i) ++lengths[choices_[i].chain];
  for (size_t i = 0; i < chains.size(); ++i) chains[i]->resize(lengths[i]);
}

// One more token, of which so much comes, must not take longer than as much of a step without it.
double DraftBudget::least_path(const StepAhead& step, int32_t requests) const {
  const double without = times_.of(step.decoding), row = times_.of(step.decoding + 1) - without;
  const bool measured = pass_seconds_ > 0 && times_.seconds() > 0;
  const double pass = measured ? pass_seconds_ / times_.seconds() : first_pass_;
  const double least = step.decoding * (row + pass / std::max(1, requests)) / without;
  return step.has_prompts ? std::max(least, kBesidePrompts) : least;
}

void DraftBudget::drafted(int32_t passes, std::chrono::duration<double> time) {
  if (passes == 0 || time.count() <= 0) return;
  constexpr double kNew = 0.1;
  const double seconds = time.count() / passes;
  pass_seconds_ =
      pass_seconds_ == 0 ? seconds : (1 - kNew) * pass_seconds_ + kNew * std::min(seconds, 3 * pass_seconds_);
}

// A stable sort leaves the drafts of a chain in their order.
void DraftBudget::order_by_path(std::span<std::vector<DraftToken>* const> chains, int32_t most) {
  choices_.clear();
  for (size_t i = 0; i < chains.size(); ++i) {
    double path = 1;
    for (const DraftToken& draft : *chains[i])
      choices_.push_back({static_cast<int32_t>(i), path *= static_cast<double>(draft.hit)});
  }
  std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.path > b.path; });
  if (std::ssize(choices_) > most) choices_.resize(most);
}

// price: of the rows that drafts add, as a part of what they cost.
int32_t DraftBudget::those_that_pay(const StepAhead& step, double price) const {
  const double without = times_.of(step.decoding);
  double tokens = step.decoding, best = kLeastGain * tokens / without;
  int32_t chosen = 0;
  for (int32_t i = 0; i < std::ssize(choices_); ++i) {
    tokens += choices_[i].path;
    const double time = times_.of(step.decoding + i + 1);
    if (step.has_others && time > kMostStretch * without) break;
    const double rate = tokens / (without + price * (time - without));
    const bool pays = step.has_prompts ? choices_[i].path >= kBesidePrompts : rate > best;
    if (!pays) continue;
    best = rate;
    chosen = i + 1;
  }
  return chosen;
}

}  // namespace quire::engine
