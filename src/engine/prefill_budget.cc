#include "engine/prefill_budget.h"

#include <algorithm>

namespace quire::engine {
namespace {

constexpr double kLeastSpread = 0.05;  // of rows, as a variance: one step in twenty had a row more
constexpr double kAlone = 256;         // squared rows by which other steps vary that prompts alone count as much as

}  // namespace

// Means of the steps, and how they vary together.
struct PrefillBudget::Moments {
  double decoding, rows, seconds;
  double decoding_spread, rows_spread, decoding_with_rows;
  double decoding_with_seconds, rows_with_seconds;

  bool decoding_varies() const { return decoding_spread >= kLeastSpread; }
  // Of rows with the number of requests that decode, and how rows vary apart from it.
  double shared() const { return decoding_varies() ? decoding_with_rows / decoding_spread : 0; }
  double own_spread() const { return std::max(rows_spread - shared() * decoding_with_rows, 0.0); }
};

PrefillBudget::Moments PrefillBudget::moments() const {
  const double decoding = decoding_ / weight_, rows = rows_ / weight_, seconds = seconds_ / weight_;
  return {.decoding = decoding,
          .rows = rows,
          .seconds = seconds,
          .decoding_spread = decoding_squared_ / weight_ - decoding * decoding,
          .rows_spread = rows_squared_ / weight_ - rows * rows,
          .decoding_with_rows = decoding_rows_ / weight_ - decoding * rows,
          .decoding_with_seconds = decoding_seconds_ / weight_ - decoding * seconds,
          .rows_with_seconds = rows_seconds_ / weight_ - rows * seconds};
}

// Least squares, beside what rows cost in steps of prompts alone; nothing where there were none and the rows do not
// vary by themselves. No row is free, and none takes longer than its step.
std::optional<double> PrefillBudget::row_of(const Moments& steps) const {
  const double own_spread = steps.own_spread(), alone = alone_counts_ / weight_;
  if (own_spread < kLeastSpread && alone < kLeastSpread) return std::nullopt;
  const double own_seconds = steps.rows_with_seconds - steps.shared() * steps.decoding_with_seconds;
  const double slope = (own_seconds + alone * row_alone_.value().count()) / (own_spread + alone);
  const double least = steps.seconds / (steps.decoding + steps.rows) / 50;
  return std::clamp(slope, least, std::max(least, steps.seconds / std::max(steps.rows, 1.0)));
}

// Seconds of a step without prompts. Where the number of requests did not vary, the least that it can be.
double PrefillBudget::decoders_of(const Moments& steps, double decoding) const {
  const double mean = std::max(steps.seconds - *row_ * steps.rows, 0.0);
  if (!steps.decoding_varies()) return mean * std::min(1.0, decoding / steps.decoding);
  const double slope = (steps.decoding_with_seconds - *row_ * steps.decoding_with_rows) / steps.decoding_spread;
  return mean + std::clamp(slope, 0.0, mean / steps.decoding) * (decoding - steps.decoding);
}

// Whether a step without prompts is to say what they cost.
bool PrefillBudget::is_to_compare() const { return had_prompts_ && (!row_ || moments().own_spread() < kLeastSpread); }

int32_t PrefillBudget::rows(int32_t decoding) const {
  if (is_to_compare()) return 0;
  const double fit = kShare * (row_ ? decoders_of(moments(), decoding) / *row_ : decoding);
  const auto rows = static_cast<int32_t>(std::clamp<double>(fit, 1, most_));
  const int32_t of_whole_tiles = (decoding + rows) / tile_ * tile_ - decoding;
  return 2 * of_whole_tiles >= rows ? of_whole_tiles : rows;
}

void PrefillBudget::measured(int32_t decoding, int32_t prompt_rows, std::chrono::duration<double> time) {
  constexpr int32_t kLeastAlone = 16;  // of fewer rows most of the time is the step's own
  constexpr double kForgets = 0.98, kMostOverExpected = 3;
  if (decoding == 0) {
    if (prompt_rows < kLeastAlone) return;
    row_alone_.add(time / prompt_rows);
    alone_counts_ = kAlone;
    return;
  }
  if (prompt_rows > 0) alone_counts_ *= kForgets;
  const double x = decoding, y = prompt_rows;
  double seconds = time.count();
  if (row_) {
    const Moments before = moments();
    seconds = std::min(seconds, kMostOverExpected * std::max(before.seconds, decoders_of(before, x) + *row_ * y));
  }
  for (double* sum : {&weight_, &decoding_, &rows_, &seconds_, &decoding_squared_, &rows_squared_, &decoding_rows_,
                      &decoding_seconds_, &rows_seconds_})
    *sum *= kForgets;
  weight_ += 1;
  decoding_ += x;
  rows_ += y;
  seconds_ += seconds;
  decoding_squared_ += x * x;
  rows_squared_ += y * y;
  decoding_rows_ += x * y;
  decoding_seconds_ += x * seconds;
  rows_seconds_ += y * seconds;
  had_prompts_ = prompt_rows > 0;
  if (const std::optional<double> row = row_of(moments())) row_ = row;
}

}  // namespace quire::engine
