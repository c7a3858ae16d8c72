// Which requests a draft model follows. To draft for a request it must have keys and values for all of its tokens, from
// the first on: a few percent of a prompt's time, and beside each token that is generated a pass of the model's own. So
// it follows those for which that pays, and leaves the others alone: these cost nothing, and can not be drafted for by
// the model until they end.
//
//   gain       tokens a second that the planned steps promise with the model, its passes paid, over what they promise
//              without it; learned apart for about 1, 2, 4, 8, ... requests that decode together
//   a request  is followed when it begins, if what a usual answer gains is more than what its prompt costs
//   and left   when steps with as many requests as there are now do not gain any more
//
// What nobody tries is not learned: of the requests that are not followed, one in kProbe is, for kTried steps.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>

#include "engine/usual_time.h"

namespace quire::engine {

class FollowBudget {
 public:
  static constexpr int32_t kProbe = 16, kTried = 32;
  // Tokens. Not this request's own answer: its prompt's pages are shared, and who finds pages that were not followed
  // cannot be followed, however long its answer is.
  static constexpr int32_t kUsualAnswer = 256;
  static constexpr double kLeastGain = 0.02;    // less may be chance, and what the target computes for the model is not
                                                // measured apart
  using Seconds = std::chrono::duration<double>;

  struct Beginning {
    int32_t decoding;     // requests that will decode together, this one included
    int32_t prompt_rows;  // that are computed for it
    Seconds step;         // of such a step without drafts; 0: not measured
  };
  enum class Choice : uint8_t { left, followed, tried };
  Choice choose(const Beginning& request);  // what becomes of a request that begins
  bool gains(int32_t decoding) const { return gain(decoding) > kLeastGain; }

  // What a planned step without prompts promises, in tokens a second; `followed` of the requests that decode are.
  void compare(int32_t decoding, int32_t followed, double with, double without);

  // After a step of so many requests that decode, and of none but those, the model took so long for those it follows.
  void followed_step(int32_t decoding, Seconds time);
  // And after one with so many rows of prompts that it follows.
  void followed_prompt(int32_t rows, Seconds time);
  Seconds step_cost(int32_t decoding) const { return costs_[class_of(decoding)].value(); }  // 0: not measured

 private:
  static constexpr int32_t kClasses = 8;
  static int32_t class_of(int32_t decoding);
  double gain(int32_t decoding) const;  // as a logarithm

  std::array<double, kClasses> gains_ = {};  // logarithms
  std::array<int32_t, kClasses> compared_ = {};
  std::array<UsualTime, kClasses> costs_ = {};
  UsualTime prompt_row_;
  int32_t passed_by_ = 0;
};

}  // namespace quire::engine
