// How many drafts a step verifies: one budget over the whole batch, so that chains get as long as they pay, and no
// longer; where drafting does not pay, there are none.
//
//   a draft's path   the chance that it and all drafts before it come: what it adds to the step's tokens
//   the step's rate  (requests that decode + paths of the chosen drafts) / t(rows), t as steps were measured
//
// Drafts are taken in order of their paths, over all requests, and as many as give the highest rate. A path never
// exceeds the one before it, so what is taken of a chain is its beginning.
//
//   - Beside a request that does not speculate, a step takes at most kMostStretch as long as without drafts.
//   - Beside prompts, which are computed at their own pace, drafts are taken whose path is at least kBesidePrompts.
//   - Prices that nobody pays are not learned: of the steps without drafts, one in kProbe drafts at half the price.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/step_times.h"

namespace quire::engine {

class DraftBudget {
 public:
  static constexpr double kMostStretch = 1.5, kBesidePrompts = 0.6;
  static constexpr int32_t kProbe = 32;
  static constexpr double kFirstPrice = 0.15;  // of a row, as a part of a step, until it was measured
  static constexpr double kFirstPass = 0.1;    // of a draft model, likewise

  // most_rows: that a step draws from. The prices are those until something is measured.
  explicit DraftBudget(int32_t most_rows, double first_price = kFirstPrice, double first_pass = kFirstPass)
      : times_(most_rows, first_price), first_pass_(first_pass) {}

  struct StepAhead {
    int32_t decoding;          // requests
    int32_t most;              // drafts that there is room for
    bool has_prompts = false;  // chunks of them
    bool has_others = false;   // requests that decode and do not speculate
  };
  // Cuts each chain to what is verified of it.
  void cut(const StepAhead& step, std::span<std::vector<DraftToken>* const> chains);

  // The path from which on a draft pays that takes a pass of a draft model, together with those of so many requests.
  double least_path(const StepAhead& step, int32_t requests) const;

  // So many passes of a draft model took so long.
  void drafted(int32_t passes, std::chrono::duration<double> time);

  // A step without prompts: the rows that it drew from.
  void measured(int32_t rows, std::chrono::duration<double> time) { times_.measured(rows, time); }

 private:
  struct Choice {
    int32_t chain;
    double path;
  };
  void order_by_path(std::span<std::vector<DraftToken>* const> chains, int32_t most);
  int32_t those_that_pay(const StepAhead& step, double price) const;

  StepTimes times_;
  double first_pass_;
  double pass_seconds_ = 0;      // of a draft model; 0: not measured
  int32_t without_ = 0;          // steps since the last one that drafted
  std::vector<Choice> choices_;  // scratch: drafts in order of their paths
};

}  // namespace quire::engine
