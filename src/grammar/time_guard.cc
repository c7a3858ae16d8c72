#include "grammar/time_guard.h"

#include <xgrammar/step_hook.h>

#include "base/processor_time.h"

namespace quire::grammar {
namespace {

using std::chrono::nanoseconds;

constexpr int kStepsBetweenLooks = 32;

// Of this thread. The clock is cheap to read and cannot be behind the processor time, which is not cheap.
using Clock = std::chrono::steady_clock;
thread_local Clock::time_point first_possible_end;
thread_local nanoseconds end;  // in processor time
thread_local int steps_to_look = 0;

void step() {
  if (--steps_to_look > 0) return;
  steps_to_look = kStepsBetweenLooks;
  if (Clock::now() >= first_possible_end && thread_processor_time() >= end) throw TimeOver();
}

}  // namespace

TimeGuard::TimeGuard(nanoseconds limit) : began_(thread_processor_time()) {
  first_possible_end = Clock::now() + limit;
  end = began_ + limit;
  steps_to_look = kStepsBetweenLooks;
  xgrammar::step_hook = step;
}

TimeGuard::~TimeGuard() { xgrammar::step_hook = nullptr; }

nanoseconds TimeGuard::used() const { return thread_processor_time() - began_; }

}  // namespace quire::grammar
