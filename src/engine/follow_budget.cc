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
constexpr double kFirstMet = 32;       // requests in steps, without drafts of their own, that are taken to have been
constexpr double kMostMet = 1024;      // older ones count less and less, likewise
constexpr int32_t kFewRows = 512;      // of a prompt that is followed only to learn
constexpr std::chrono::minutes kSaved{1};  // of steps, at most, whose share is left for tries

}  // namespace

int32_t FollowBudget::class_of(int32_t decoding) {
  return std::min<int32_t>(std::bit_width(static_cast<uint32_t>(std::max(1, decoding))) - 1, kClasses - 1);
}

int32_t FollowBudget::own_class_of(double own) {
  return static_cast<int32_t>(std::ranges::lower_bound(kOwn, own) - kOwn.begin());
}

// More requests share a step's time already, so of what they gain nobody expects more than of fewer.
double FollowBudget::gain(int32_t of, int32_t own) const {
  for (int32_t i = of; i >= 0; --i)
    if (gains_[i][own].compared > 0) return i == of ? gains_[i][own].gain : std::min(kFirstGain, gains_[i][own].gain);
  return kFirstGain;
}

// Of all steps, those included in which it is not asked and gains nothing.
double FollowBudget::gain(int32_t decoding) const {
  const int32_t of = class_of(decoding);
  double met = kFirstMet, gained = kFirstMet * std::max(0.0, gain(of, 0));
  for (int32_t own = 0; own < kOwnClasses; ++own) {
    met += gains_[of][own].met;
    gained += gains_[of][own].met * std::max(0.0, gain(of, own));
  }
  return gained / met;
}

bool FollowBudget::asks(int32_t decoding, double own) {
  const int32_t of = class_of(decoding);
  Gain& here = gains_[of][own_class_of(own)];
  if (++here.met > kMostMet)
    for (Gain& each : gains_[of]) each.met /= 2;
  const bool asked = gain(of, own_class_of(own)) > 0 || ++here.unasked == kAskedAgain;
  if (asked) here.unasked = 0;
  return asked;
}

FollowBudget::Seconds FollowBudget::usual_gain(int32_t decoding, Seconds step) const {
  return kUsualAnswer * step * (1 - std::exp(-gain(decoding)));
}

FollowBudget::Choice FollowBudget::choose(const Beginning& request) {
  const Seconds saved = usual_gain(request.decoding, request.step) + request.missed;
  const Seconds price = request.prompt_rows * prompt_row_.value() + request.again * target_row_.value();
  Probe& probe = probes_[class_of(request.decoding)];
  if (gains(request.decoding) && (request.step.count() == 0 || saved >= price)) {
    probe = {};
    return Choice::followed;
  }
  if (request.prompt_rows > kFewRows || ++probe.passed_by < probe.after) return Choice::left;
  if (for_tries_.count() < 0) return Choice::left;
  probe = {.after = std::min(2 * probe.after, kRarestProbe)};
  return Choice::tried;
}

void FollowBudget::stepped(Seconds time) {
  for_tries_ = std::min<Seconds>(for_tries_ + kTriesShare * time, kTriesShare * kSaved);
}

void FollowBudget::compare(int32_t decoding, std::span<const double> own, double with, double without) {
  if (own.empty() || with <= 0 || without <= 0) return;
  constexpr double kMost = 1;  // that one step may say
  const double seen = std::clamp(std::log(with / without) * decoding / static_cast<double>(own.size()), -kMost, kMost);
  const int32_t of = class_of(decoding);
  for (const double promised : own) {
    const int32_t own_class = own_class_of(promised);
    Gain& here = gains_[of][own_class];
    if (here.compared == 0) here.gain = gain(of, own_class);
    here.compared = std::min(here.compared + 1, kMostCompared);
    here.gain += (seen - here.gain) / (here.compared + kFirstWorth);
  }
}

void FollowBudget::followed_prompt(int32_t rows, Seconds time) {
  if (rows > 0) prompt_row_.add(time / rows);
}

void FollowBudget::computed_prompt(int32_t rows, Seconds time) {
  if (rows > 0) target_row_.add(time / rows);
}

}  // namespace quire::engine
