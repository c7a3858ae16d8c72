// How many drafts a step verifies: one budget over the whole batch, so that chains get as long as they pay, and no
// longer; where drafting does not pay, there are none.
//
//   a draft's path   the chance that it and all drafts before it come: what it adds to the step's tokens
//   the step's rate  (requests that decode + paths of the chosen drafts) / t(rows), t as steps were measured
//   the turn         what a step with drafts costs beside its rows where steps overlap: the next one can be planned
//                    only when its tokens are known, and the device has nothing to do meanwhile
//
// Drafts are taken in order of their paths, over all requests, and as many as give the highest rate. They stand in that
// order in the list of each request (draft_tree.h), so what is taken of a chain or a tree is its beginning.
//
//   - Beside a request that does not speculate, a step takes at most kMostStretch as long as without drafts.
//   - Beside prompts, which have a share of the time of their own (prefill_budget.h), a row costs what it adds to their
//     rows, and drafts are taken whose path is at least kBesidePrompts.
//   - Prices that nobody pays are not learned: of the steps without drafts, one in kProbe drafts at half the price, and
//     fewer and fewer as long as none pays.
#pragma once
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_reach.h"
#include "engine/drafter.h"
#include "engine/step_times.h"
#include "engine/usual_time.h"

namespace quire::engine {

class DraftBudget {
 public:
  static constexpr double kMostStretch = 1.5, kBesidePrompts = 0.6;
  static constexpr int32_t kProbe = 32, kRarestProbe = 1024;
  static constexpr double kFirstPrice = 0.15;  // of a row, as a part of a step, until it was measured
  static constexpr double kFirstPass = 0.1;    // of a draft model, likewise

  // most_rows: that a step draws from. The prices are those until something is measured.
  explicit DraftBudget(int32_t most_rows, double first_price = kFirstPrice, double first_pass = kFirstPass)
      : times_(most_rows, first_price), first_pass_(first_pass) {}

  struct StepAhead {
    int32_t decoding;         // requests
    int32_t most;             // drafts that there is room for
    int32_t prompt_rows = 0;  // beside them
    bool has_others = false;  // requests that decode and do not speculate
  };
  // Cuts the drafts of each request to what is verified of them.
  void cut(const StepAhead& step, std::span<std::vector<DraftToken>* const> drafts);

  // Whether some would be verified. Costs what cut() costs.
  bool pays(const StepAhead& step, std::span<std::vector<DraftToken>* const> chains) {
    return choose(step, chains) > 0;
  }

  // The path from which on a draft pays that takes a pass of a draft model, together with those of so many requests.
  double least_path(const StepAhead& step, int32_t requests) const;

  // So many passes of a draft model, up to `most`, that the next step promises the highest rate, the passes paid: for
  // requests whose drafts reach so far, of which the first ones need no pass.
  int32_t passes(const StepAhead& step, std::span<const DraftReach* const> reaches, int32_t most) const;

  // What a step promises whose chains are cut as they pay: its tokens, and its time in units, less what its prompts
  // take.
  struct Promise {
    double tokens, time;
  };
  Promise promise(const StepAhead& step, std::span<std::vector<DraftToken>* const> chains);

  // What such a time of 1 is; 0: not measured.
  std::chrono::duration<double> unit() const { return std::chrono::duration<double>(times_.seconds()); }
  // Of a step of so many rows, and of as many passes of a draft model; 0: not measured.
  std::chrono::duration<double> time_of(int32_t rows) const {
    return std::chrono::duration<double>(times_.of(rows) * times_.seconds());
  }
  std::chrono::duration<double> time_of_passes(int32_t passes) const { return passes * pass_.value(); }

  // So many passes of a draft model took so long.
  void drafted(int32_t passes, std::chrono::duration<double> time);

  // A step waited for the tokens of the one before, and the device so long for that step.
  void turned(std::chrono::duration<double> time);

  // A step without prompts: the rows that it drew from.
  void measured(int32_t rows, std::chrono::duration<double> time) { times_.measured(rows, time); }

 private:
  struct Choice {
    int32_t request;
    double path;
  };
  int32_t choose(const StepAhead& step, std::span<std::vector<DraftToken>* const> drafts);
  void order_by_path(std::span<std::vector<DraftToken>* const> drafts, int32_t most);
  int32_t those_that_pay(const StepAhead& step, double price) const;
  double time_with(const StepAhead& step, int32_t drafts) const;
  double pass_price() const;  // in steps of one row

  StepTimes times_;
  double first_pass_;
  UsualTime pass_;               // of a draft model
  UsualTime turn_;               // where steps do not overlap there is none
  int32_t without_ = 0;          // steps since the last one that drafted
  int32_t probe_ = kProbe;       // after so many one drafts all the same
  std::vector<Choice> choices_;  // scratch: drafts in order of their paths
};

}  // namespace quire::engine
