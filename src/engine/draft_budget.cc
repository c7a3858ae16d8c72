#include "engine/draft_budget.h"

#include <algorithm>

#include "engine/draft_tree.h"

namespace quire::engine {
namespace {

// A rate that is higher by less than this may be chance, and drafts are work.
constexpr double kLeastGain = 1.02;

}  // namespace

int32_t DraftBudget::choose(const StepAhead& step, std::span<std::vector<DraftToken>* const> drafts) {
  order_by_path(drafts, step.most);
  int32_t chosen = those_that_pay(step, 1);
  if (chosen > 0) probe_ = kProbe;
  if (chosen == 0 && !choices_.empty() && ++without_ >= probe_) {
    chosen = those_that_pay(step, 0.5);
    probe_ = std::min(2 * probe_, kRarestProbe);
  }
  if (chosen > 0) without_ = 0;
  return chosen;
}

void DraftBudget::cut(const StepAhead& step, std::span<std::vector<DraftToken>* const> drafts) {
  const int32_t chosen = choose(step, drafts);
  std::vector<size_t> lengths(drafts.size());
  for (int32_t i = 0; i < chosen; ++i) ++lengths[choices_[i].request];
  for (size_t i = 0; i < drafts.size(); ++i) drafts[i]->resize(lengths[i]);
}

DraftBudget::Promise DraftBudget::promise(const StepAhead& step, std::span<std::vector<DraftToken>* const> chains) {
  order_by_path(chains, step.most);
  const int32_t chosen = those_that_pay(step, 1);
  double tokens = step.decoding;
  for (int32_t i = 0; i < chosen; ++i) tokens += choices_[i].path;
  return {.tokens = tokens, .time = time_with(step, chosen)};
}

// One more token, of which so much comes, must not take longer than as much of a step without it. The draft that a pass
// brings is less likely than the path before it, and drafts before it make a step's tokens cheaper already: so a pass
// and a row must be worth kWorth of their price. A row is one of the next few, since the first that a step adds may be
// all but free.
double DraftBudget::least_path(const StepAhead& step, int32_t requests) const {
  constexpr double kWorth = 2.5;
  constexpr int32_t kFew = 4;
  const double without = time_with(step, 0), row = (time_with(step, kFew * requests) - without) / kFew;
  const double least = kWorth * step.decoding * (row + pass_price()) / requests / without;
  return step.prompt_rows > 0 ? std::max(least, kBesidePrompts) : least;
}

double DraftBudget::pass_price() const {
  const bool measured = pass_.value().count() > 0 && times_.seconds() > 0;
  return measured ? pass_.value().count() / times_.seconds() : first_pass_;
}

// For each number the best of the drafts that it gives are taken, as many as pay.
int32_t DraftBudget::passes(const StepAhead& step, std::span<const DraftReach* const> reaches, int32_t most) const {
  struct Deep {
    double chance;
    int32_t depth;
  };
  std::vector<Deep> drafts;
  for (const DraftReach* reach : reaches)
    for (int32_t depth = 1; depth <= std::min<int64_t>(most + 1, std::ssize(reach->chances())); ++depth)
      drafts.push_back({reach->chances()[depth - 1], depth});
  std::stable_sort(drafts.begin(), drafts.end(), [](const Deep& a, const Deep& b) { return a.chance > b.chance; });
  std::vector<double> times;  // of steps with so many of them
  for (int32_t i = 0; i <= std::min<int64_t>(step.most, std::ssize(drafts)); ++i)
    times.push_back(times_.of(step.decoding + i));
  double best = 0;
  int32_t chosen = 0;
  for (int32_t passes = 0; passes <= most; ++passes) {
    double tokens = step.decoding, rate = 0;
    size_t taken = 0;
    for (const Deep& draft : drafts) {
      if (draft.depth > passes + 1) continue;
      if (++taken == times.size()) break;
      tokens += draft.chance;
      rate = std::max(rate, tokens / (times[taken] + passes * pass_price()));
    }
    if (rate <= best) continue;
    best = rate;
    chosen = passes;
  }
  return chosen;
}

void DraftBudget::drafted(int32_t passes, std::chrono::duration<double> time) {
  if (passes > 0) pass_.add(time / passes);
}

void DraftBudget::turned(std::chrono::duration<double> time) { turn_.add(time); }

// A stable sort leaves the drafts of a request in their order.
void DraftBudget::order_by_path(std::span<std::vector<DraftToken>* const> drafts, int32_t most) {
  choices_.clear();
  for (size_t i = 0; i < drafts.size(); ++i)
    for (const double path : paths_of(*drafts[i])) choices_.push_back({static_cast<int32_t>(i), path});
  std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.path > b.path; });
  if (std::ssize(choices_) > most) choices_.resize(most);
}

// Of the part of a step that is not its prompts', in steps of one row.
double DraftBudget::time_with(const StepAhead& step, int32_t drafts) const {
  const int32_t rows = step.decoding + step.prompt_rows;
  return times_.of(rows + drafts) - (times_.of(rows) - times_.of(step.decoding));
}

// price: of the rows that drafts add, and of the turn, as a part of what they cost.
int32_t DraftBudget::those_that_pay(const StepAhead& step, double price) const {
  const bool has_prompts = step.prompt_rows > 0;
  const double without = time_with(step, 0);
  const double turn = times_.seconds() > 0 && !has_prompts ? turn_.value().count() / times_.seconds() : 0;
  double tokens = step.decoding, best = kLeastGain * tokens / without;
  int32_t chosen = 0;
  for (int32_t i = 0; i < std::ssize(choices_); ++i) {
    if (has_prompts && choices_[i].path < kBesidePrompts) break;
    tokens += choices_[i].path;
    const double time = time_with(step, i + 1) + turn;
    if (step.has_others && times_.of(step.decoding + i + 1) + turn > kMostStretch * without) break;
    const double rate = tokens / (without + price * (time - without));
    if (rate <= best) continue;
    best = rate;
    chosen = i + 1;
  }
  return chosen;
}

}  // namespace quire::engine
