// Ends xgrammar's work when it has taken too long.
//
// xgrammar has no limit of time and what a grammar costs cannot be told from its size: masks take some microseconds for
// grammars of the common kinds and could take seconds for hostile ones. All its long work goes through its parser's step
// by a byte, which calls the hook that cmake/xgrammar.patch adds; ours charges the processor time of the thread now and
// then. Time that other threads take does not count.
//
// All masks of a call share one allowance, and work that is under way on several threads at once is charged to it as it
// goes: together they take as much as one alone would, and a fraction of a millisecond for each thread.
//
// Errors   TimeOver leaves xgrammar's call. What the call worked on is in an unknown state and may only be destroyed.
#pragma once
#include <atomic>
#include <chrono>
#include <exception>

namespace quire::grammar {

struct MaskTime {  // a call has some at once and earns more with each of its tokens, up to as much
  std::chrono::microseconds at_once{200'000};
  std::chrono::microseconds per_token{1'000};
};

class TimeAllowance {  // of processor time; from any thread. Once used up it stays so
 public:
  explicit TimeAllowance(const MaskTime& time) : time_(time), left_(std::chrono::nanoseconds(time.at_once)) {}

  bool used_up() const { return left_.load().count() == 0; }
  bool spend(std::chrono::nanoseconds time);  // false: used up
  void earn_for_a_token();

 private:
  const MaskTime time_;
  std::atomic<std::chrono::nanoseconds> left_;
};

struct TimeOver : std::exception {
  const char* what() const noexcept override { return "the time is over"; }
};

class TimeGuard {  // for its life, on the thread that made it; one at a time
 public:
  explicit TimeGuard(TimeAllowance& allowance);
  ~TimeGuard();  // charges what was not charged yet
  TimeGuard(const TimeGuard&) = delete;
  TimeGuard& operator=(const TimeGuard&) = delete;
};

}  // namespace quire::grammar
