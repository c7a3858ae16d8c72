#include "engine/follow_budget.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace quire::engine {
namespace {

// Until something is known, a model is worth a try.
constexpr double kFirstGain = 0.1;
constexpr int32_t kFirstWorth = 16;    // comparisons
constexpr int32_t kMostCompared = 64;  // older ones count less and less: texts change
constexpr int32_t kFewRows = 512;      // of a prompt that is followed only to learn

}  // namespace

int32_t FollowBudget::class_of(int32_t decoding) {
  return std::min<int32_t>(std::bit_width(static_cast<uint32_t>(std::max(1, decoding))) - 1, kClasses - 1);
}

// More requests share a step's time already, so of what they gain nobody expects more than of fewer.
double FollowBudget::gain(int32_t decoding) const {
  const int32_t own = class_of(decoding);
  for (int32_t i = own; i >= 0; --i)
    if (compared_[i] > 0) return i == own ? gains_[i] : std::min(kFirstGain, gains_[i]);
  return kFirstGain;
}

FollowBudget::Choice FollowBudget::choose(const Beginning& request) {
  const double gained = gain(request.decoding);
  const Seconds saved = kUsualAnswer * request.step * (1 - std::exp(-gained));
  const Seconds price = request.prompt_rows * prompt_row_.value();
  if (gained > kLeastGain && (request.step.count() == 0 || saved >= price)) return Choice::followed;
  if (request.prompt_rows > kFewRows || ++passed_by_ < kProbe) return Choice::left;
  passed_by_ = 0;
  return Choice::tried;
}

void FollowBudget::compare(int32_t decoding, int32_t followed, double with, double without) {
  if (followed == 0 || with <= 0 || without <= 0) return;
  constexpr double kMost = 1;  // that one step may say
  const double seen = std::clamp(std::log(with / without) * decoding / followed, -kMost, kMost);
  const int32_t of = class_of(decoding);
  if (compared_[of] == 0) gains_[of] = gain(decoding);
  compared_[of] = std::min(compared_[of] + 1, kMostCompared);
  gains_[of] += (seen - gains_[of]) / (compared_[of] + kFirstWorth);
}

void FollowBudget::followed_step(int32_t decoding, Seconds time) { costs_[class_of(decoding)].add(time); }

void FollowBudget::followed_prompt(int32_t rows, Seconds time) {
  if (rows > 0) prompt_row_.add(time / rows);
}

}  // namespace quire::engine
