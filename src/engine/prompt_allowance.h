// How many rows of prompts a step may have beside requests that decode: each prompt that waits for its first token may
// stretch the step by kShare of its time. So a single prompt, however long, does not double the time between the tokens
// of others, and when many wait, those who have begun give way.
//
// The time of a step is taken to grow with its rows, from a time that even an empty one would take. Both are learned
// from the steps themselves, because they depend on the machine, the model and the depth of the texts.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

namespace quire::engine {

class PromptAllowance {
 public:
  static constexpr double kShare = 0.75;   // below 1: steps vary
  static constexpr int32_t kLeast = 4;     // fewer cost about as much, and a prompt has to get on
  static constexpr int32_t kUnknown = 16;  // until steps of different sizes were seen

  explicit PromptAllowance(int32_t most) : most_(most) {}

  // decoding, prompts: requests, at least 1 of each; the result: at least 1
  int32_t rows(int32_t decoding, int32_t prompts) const;
  void measured(int32_t rows, std::chrono::duration<double> took);  // all rows of a step

 private:
  struct Line {
    double empty, row;  // seconds
    double at(double rows) const { return empty + row * rows; }
  };
  std::optional<Line> line() const;

  int32_t most_;
  double weight_ = 0, rows_ = 0, seconds_ = 0;  // sums that forget
  double rows_squared_ = 0, rows_seconds_ = 0;
};

}  // namespace quire::engine
