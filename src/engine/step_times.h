// What a step costs by the rows that it draws from, relative to a step of one: t(n).
//
// Learned from the steps themselves, because it depends on the machine, the model and the depth of the texts: a
// measured step moves the level of all rows at once, and a little its own rows against the others, whose neighbours
// follow by half. So a price that was last paid long ago stays right in proportion when texts get longer or the machine
// slower.
#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

namespace quire::engine {

class StepTimes {
 public:
  // most: rows. A row after the first is taken to cost so much of a step, until it is known.
  explicit StepTimes(int32_t most, double row);

  double of(int32_t rows) const;             // t(rows), at least 1 row; ascending
  double seconds() const { return level_; }  // of t = 1; 0: nothing was measured
  void measured(int32_t rows, std::chrono::duration<double> time);

 private:
  std::vector<double> times_;  // [most], of 1 row first
  double level_ = 0;           // seconds of t = 1; 0: nothing was measured
};

}  // namespace quire::engine
