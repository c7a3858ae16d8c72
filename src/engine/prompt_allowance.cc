#include "engine/prompt_allowance.h"

#include <algorithm>

namespace quire::engine {

// Least squares. A step never gets cheaper by a row, and none is free.
std::optional<PromptAllowance::Line> PromptAllowance::line() const {
  constexpr double kLeastSpread = 0.25;  // of the rows, as a variance: about half a row
  if (weight_ == 0) return std::nullopt;
  const double rows = rows_ / weight_, seconds = seconds_ / weight_;
  const double spread = rows_squared_ / weight_ - rows * rows;
  if (spread < kLeastSpread) return std::nullopt;
  const double most = seconds / rows, slope = (rows_seconds_ / weight_ - rows * seconds) / spread;
  const double row = std::clamp(slope, most / 50, most);
  return Line{.empty = seconds - row * rows, .row = row};
}

int32_t PromptAllowance::rows(int32_t decoding, int32_t prompts) const {
  const std::optional<Line> steps = line();
  if (!steps) return std::min(kUnknown, most_);
  const double fit = kShare * prompts * steps->at(decoding) / steps->row;
  return static_cast<int32_t>(std::min<double>(most_, std::max<double>(fit, kLeast)));
}

void PromptAllowance::measured(int32_t rows, std::chrono::duration<double> took) {
  constexpr double kForgets = 0.98, kMostOverLine = 3;
  double seconds = took.count();
  if (const std::optional<Line> steps = line()) seconds = std::min(seconds, kMostOverLine * steps->at(rows));
  for (double* sum : {&weight_, &rows_, &seconds_, &rows_squared_, &rows_seconds_}) *sum *= kForgets;
  const double x = rows;
  weight_ += 1;
  rows_ += x;
  seconds_ += seconds;
  rows_squared_ += x * x;
  rows_seconds_ += x * seconds;
}

}  // namespace quire::engine
