// Shows what is fetched from a hub: one line that changes where somebody watches standard error, else a line at the
// beginning, every few seconds, and at the end.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "hub/fetch_events.h"
#include "progress.h"

namespace quire {

class FetchDisplay {
 public:
  explicit FetchDisplay(SayLine say_line);

  hub::FetchEvents events();  // to be used while this lives

 private:
  using Clock = std::chrono::steady_clock;

  void say(const std::string& line);
  void show(const hub::FetchProgress& progress);
  std::string line_of(const hub::FetchProgress& progress) const;

  const bool watched_;
  const SayLine say_line_;
  Progress progress_;
  bool begun_ = false, ended_ = false;
  int64_t first_done_ = 0;  // what was there before this began
  Clock::time_point begin_, shown_;
};

}  // namespace quire
