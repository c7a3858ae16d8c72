#include "engine/step_times.h"

#include <algorithm>
#include <cmath>

namespace quire::engine {
namespace {

// Parts of a measured step's surprise, as logarithms, that change the level and the time of its rows. A step that was
// held up by something else surprises by no more than kMostSurprise.
constexpr double kOfLevel = 0.25, kOfRows = 0.1, kMostSurprise = 0.7;
constexpr int32_t kNeighbours = 5;

}  // namespace

StepTimes::StepTimes(int32_t most, double row) {
  for (int32_t i = 0; i < most; ++i) times_.push_back(1 + row * i);
}

// No row makes a step shorter: where it seems so, the larger number was measured less.
double StepTimes::of(int32_t rows) const {
  const auto end = times_.begin() + std::clamp<int64_t>(rows, 1, std::ssize(times_));
  return *std::max_element(times_.begin(), end);
}

void StepTimes::measured(int32_t rows, std::chrono::duration<double> time) {
  if (rows < 1 || rows > std::ssize(times_) || time.count() <= 0) return;
  if (level_ == 0) level_ = time.count() / times_[rows - 1];
  const double surprise =
      std::clamp(std::log(time.count() / (level_ * times_[rows - 1])), -kMostSurprise, kMostSurprise);
  level_ *= std::exp(kOfLevel * surprise);
  const int32_t last = std::min(rows + kNeighbours, static_cast<int32_t>(times_.size()));
  for (int32_t n = std::max(1, rows - kNeighbours); n <= last; ++n)
    times_[n - 1] *= std::exp(kOfRows * surprise * std::exp2(-std::abs(n - rows)));
}

}  // namespace quire::engine
