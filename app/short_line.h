// A line of a benchmark that takes less time than reading a clock or little more, so that a sample is many calls
// between two readings.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "machine_limits.h"
#include "timing.h"

namespace quire::bench {

struct ShortLine {
  std::string name;
  std::function<double(int64_t calls)> seconds;  // of that many calls
  int64_t calls = 1;                             // in a sample
  double bytes = 0;                              // that a call must write; 0: no limit is known
  std::string note = {};
  std::vector<double> samples = {};  // seconds of one call
};

// Times `calls` calls of one function; the loop is compiled around it, so that nothing but the call is added.
template <class Call>
std::function<double(int64_t)> in_a_loop(Call call) {
  return [call](int64_t calls) {
    return seconds_of([&] {
      for (int64_t i = 0; i < calls; ++i) call();
    });
  };
}

// Lines are measured in turns, a sample each round, with the machine's limits now and then in between.
void measure(std::vector<ShortLine>& lines, int rounds, LimitSampler& limits, Exec& exec);

// Whether the line of this name was asked for.
using Wanted = std::function<bool(const std::string& name)>;

}  // namespace quire::bench
