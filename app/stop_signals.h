// SIGINT and SIGTERM as something to wait for: while a StopSignals lives, they are counted instead of ending the
// process. Before wait_from_now_on() they still end it at once, because nothing is there yet that should be finished.
// One at a time.
#pragma once
#include <chrono>

namespace quire {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // the signals do again what they do by default
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void wait_from_now_on();
  void wait();                                    // for the next one
  bool wait_for(std::chrono::milliseconds time);  // false: none came
};

}  // namespace quire
