// SIGINT and SIGTERM, and if asked SIGHUP, as something to wait for: while a StopSignals lives, they are counted
// instead of ending the process. Before wait_from_now_on() the first two still end it at once, because nothing is there
// yet that should be finished. One at a time.
#pragma once
#include <chrono>

namespace quire {

enum class Signal { stop, reload };  // SIGHUP: files are to be read again

class StopSignals {
 public:
  enum class Hangup { ends_it, reloads };  // what SIGHUP does
  explicit StopSignals(Hangup hangup);
  ~StopSignals();  // the signals do again what they do by default
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void wait_from_now_on();
  Signal wait();                                  // for the next one
  bool wait_for(std::chrono::milliseconds time);  // to stop; false: none came
};

}  // namespace quire
