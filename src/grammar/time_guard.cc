#include "grammar/time_guard.h"

#include <xgrammar/step_hook.h>

#include <algorithm>
#include <utility>

#include "base/processor_time.h"

namespace quire::grammar {
namespace {

using std::chrono::nanoseconds;

constexpr int kStepsBetweenLooks = 32;
constexpr std::chrono::microseconds kBetweenCharges{100};

// Of this thread. The clock is cheap to read and cannot be behind the processor time, which is not cheap.
using Clock = std::chrono::steady_clock;
thread_local TimeAllowance* charged = nullptr;
thread_local nanoseconds charged_until;  // in processor time
thread_local Clock::time_point next_charge;
thread_local int steps_to_look = 0;

bool charge() {
  next_charge = Clock::now() + kBetweenCharges;
  const nanoseconds since = std::exchange(charged_until, thread_processor_time());
  return charged->spend(charged_until - since);
}

void step() {
  if (--steps_to_look > 0) return;
  steps_to_look = kStepsBetweenLooks;
  if (Clock::now() >= next_charge && !charge()) throw TimeOver();
}

}  // namespace

bool TimeAllowance::spend(nanoseconds time) {
  nanoseconds before = left_.load(), after;
  do after = std::max(before - time, nanoseconds(0));
  while (!left_.compare_exchange_weak(before, after));
  return after.count() > 0;
}

void TimeAllowance::earn_for_a_token() {
  nanoseconds before = left_.load();
  while (before.count() > 0 &&
         !left_.compare_exchange_weak(before, std::min<nanoseconds>(before + time_.per_token, time_.at_once))) {
  }
}

TimeGuard::TimeGuard(TimeAllowance& allowance) {
  charged = &allowance;
  charged_until = thread_processor_time();
  next_charge = Clock::now() + kBetweenCharges;
  steps_to_look = kStepsBetweenLooks;
  xgrammar::step_hook = step;
}

TimeGuard::~TimeGuard() {
  xgrammar::step_hook = nullptr;
  charge();
}

}  // namespace quire::grammar
