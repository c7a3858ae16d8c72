#include "grammar/time_guard.h"

#include <cstdint>
#include <ctime>

namespace quire::grammar {
namespace {

constexpr int kStepsBetweenLooks = 8;

// Of this thread. The clock is cheap to read and cannot be behind the processor time, which is not cheap.
using Clock = std::chrono::steady_clock;
thread_local Clock::time_point first_possible_end;
thread_local int64_t end = 0;  // in processor time, nanoseconds; 0: no guard
thread_local int steps_to_look = 0;

int64_t processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

void step() {
  if (end == 0 || --steps_to_look > 0) return;
  steps_to_look = kStepsBetweenLooks;
  if (Clock::now() >= first_possible_end && processor_time() >= end) throw TimeOver();
}

}  // namespace

TimeGuard::TimeGuard(std::chrono::nanoseconds limit) {
  first_possible_end = Clock::now() + limit;
  end = processor_time() + limit.count();
  steps_to_look = kStepsBetweenLooks;
}

TimeGuard::~TimeGuard() { end = 0; }

std::chrono::nanoseconds TimeGuard::left() const { return std::chrono::nanoseconds(end - processor_time()); }

}  // namespace quire::grammar

// xgrammar::EarleyParser::Advance(unsigned char, bool), by the names that the linker makes of it.
extern "C" {
bool __real__ZN8xgrammar12EarleyParser7AdvanceEhb(void* parser, unsigned char byte, bool print);

bool __wrap__ZN8xgrammar12EarleyParser7AdvanceEhb(void* parser, unsigned char byte, bool print) {
  quire::grammar::step();
  return __real__ZN8xgrammar12EarleyParser7AdvanceEhb(parser, byte, print);
}
}
