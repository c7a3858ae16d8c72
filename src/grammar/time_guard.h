// Ends xgrammar's work on this thread when it has taken too long.
//
// xgrammar has no limit of time and what a grammar costs cannot be told from its size. All its long work goes through
// its parser's step by a byte, which calls the hook that cmake/xgrammar.patch adds; ours looks at the processor time of
// the thread now and then. Time that other threads take does not count.
//
// Errors   TimeOver leaves xgrammar's call. What the call worked on is in an unknown state and may only be destroyed.
#pragma once
#include <chrono>
#include <exception>

namespace quire::grammar {

struct TimeOver : std::exception {
  const char* what() const noexcept override { return "the time is over"; }
};

class TimeGuard {  // for its life, on the thread that made it; one at a time
 public:
  explicit TimeGuard(std::chrono::nanoseconds limit);
  ~TimeGuard();
  TimeGuard(const TimeGuard&) = delete;
  TimeGuard& operator=(const TimeGuard&) = delete;

  std::chrono::nanoseconds used() const;

 private:
  const std::chrono::nanoseconds began_;  // in processor time
};

}  // namespace quire::grammar
