// How many rows of prompts a step may have beside requests that decode: as many as stretch it by kShare of its time,
// however many prompts wait. So nobody's tokens come at less than half their pace. And while somebody decodes, prompts
// have kShare / (1 + kShare) of the time, nearly half: they take about twice as long as if nobody did. (The scheduler
// makes one exception, for requests that come together.)
//
// A step is taken to cost a time of its own, one for each request that decodes and one for each row of a prompt. They
// are learned from the steps themselves, because they depend on the machine, the model and the depth of the texts.
// Steps with few rows of prompts say little of what a row costs: one that was held up by something else seems to say
// that rows are dear, steps get a row each, and then none says anything else. So a row costs at first what it costs in
// steps of prompts alone, until others have said more, and where rows do not vary a step has none now and then. Where
// no prompt was ever alone, a row counts like a request that decodes until it is known, and every other step has none.
//
// A device that multiplies rows in tiles takes as long for a part of a tile as for a whole one. Its steps have whole
// tiles where that leaves prompts at least half of their rows.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

#include "engine/usual_time.h"

namespace quire::engine {

class PrefillBudget {
 public:
  static constexpr double kShare = 0.9;  // below 1: steps vary

  explicit PrefillBudget(int32_t most, int32_t tile = 1) : most_(most), tile_(tile) {}

  int32_t rows(int32_t decoding) const;  // decoding: requests, at least 1
  // decoding: 0: a step of prompts alone.
  void measured(int32_t decoding, int32_t prompt_rows, std::chrono::duration<double> time);

 private:
  struct Moments;
  Moments moments() const;
  bool is_to_compare() const;
  std::optional<double> row_of(const Moments& steps) const;
  double decoders_of(const Moments& steps, double decoding) const;

  int32_t most_, tile_;
  std::optional<double> row_;  // seconds of a prompt's row, as they were last seen
  bool had_prompts_ = false;   // the last step
  UsualTime row_alone_;        // of steps of prompts alone
  double alone_counts_ = 0;    // less with each step beside which somebody decodes
  double weight_ = 0;          // sums that forget: of other steps, and over them
  double decoding_ = 0, rows_ = 0, seconds_ = 0;
  double decoding_squared_ = 0, rows_squared_ = 0, decoding_rows_ = 0;
  double decoding_seconds_ = 0, rows_seconds_ = 0;
};

}  // namespace quire::engine
