// Which requests a draft model follows, and in which of their steps it is asked for drafts. To draft for a request it
// must have keys and values for all of its tokens, from the first on: a few percent of a prompt's time, and beside the
// tokens that are generated passes of the model's own. So it follows those for which that pays, and leaves the others
// alone: these cost nothing, and can not be drafted for by the model until they end.
//
//   gain       tokens a second that a planned step promises with the model, its passes paid, over what it promises
//              without it; learned apart for about 1, 2, 4, 8, ... requests that decode together, and by how many
//              tokens the request's own drafter promises: the more these are, the less is left to gain
//   asked      the model is in steps of a request where that gains; in others it computes nothing, and catches up later
//   a request  is followed when it begins, if what a usual answer gains is more than what its prompt costs
//   and left   when steps with as many requests as there are now do not gain any more
//
// A request may find cached pages of which the model has nothing: they were computed for one that was not followed. To
// be followed it computes their tokens again, the target's part as well, and then they have slots for all who find them
// after it. So what it missed who found these pages before, and was not followed, is added to what it gains: however
// long a prefix is, it is computed again once it has cost as much as that takes, and never sooner.
//
// What nobody tries is not learned: of the requests that are not followed, one in kProbe is, for kTried steps, and
// fewer and fewer as long as none gains; and of the steps in which the model would not be asked, it is in one of
// kAskedAgain. A pass takes as long for one request of many as for all, so tries among many would cost all of them:
// what is measured of them, catching up and passes, is a hundredth of the time at most: each step adds as much to what
// they may take, and what a try took too long the next ones wait for.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <span>

#include "engine/usual_time.h"

namespace quire::engine {

class FollowBudget {
 public:
  static constexpr int32_t kProbe = 16, kRarestProbe = 512, kTried = 32, kAskedAgain = 64;
  // Tokens. Not this request's own answer: its prompt's pages are shared, and who finds pages that were not followed
  // has to compute them again.
  static constexpr int32_t kUsualAnswer = 256;
  static constexpr double kTriesShare = 0.01;
  static constexpr double kLeastGain = 0.02;  // less may be chance, and what the target computes for the model is not
                                              // measured apart
  using Seconds = std::chrono::duration<double>;

  struct Beginning {
    int32_t decoding;     // requests that will decode together, this one included
    int32_t prompt_rows;  // that are computed for it if it is followed
    Seconds step;         // of such a step without drafts; 0: not measured
    int32_t again = 0;    // of the rows: in pages that it found, and of which the model has nothing
    Seconds missed = {};  // by others that found them
  };
  enum class Choice : uint8_t { left, followed, tried };
  Choice choose(const Beginning& request);  // what becomes of a request that begins
  // What a usual answer gains: a request that is not followed misses it.
  Seconds usual_gain(int32_t decoding, Seconds step) const;
  bool gains(int32_t decoding) const { return gain(decoding) > kLeastGain; }

  // Whether it is asked for a request that it follows. own: tokens that the request's own drafter promises. To be
  // called once for each such request of a step, since it counts them.
  bool asks(int32_t decoding, double own);

  // What a planned step promises without its prompts, in tokens a second, with and without the drafts that the
  // model was asked for. own: of each request for which it was.
  void compare(int32_t decoding, std::span<const double> own, double with, double without);

  // After a step in which somebody decodes.
  void stepped(Seconds time);
  // The model was asked for nobody but those that are tried, and that took so long.
  void tried(Seconds time) { for_tries_ -= time; }

  // After a step of so many requests that decode, and of none but those, the model took so long for those it follows.
  void followed_step(int32_t decoding, Seconds time) { steps_[class_of(decoding)].add(time); }
  // And when it was asked, before its first drafts were known.
  void caught_up(int32_t decoding, Seconds time) { catch_ups_[class_of(decoding)].add(time); }
  // And after a step with so many rows of prompts that it follows.
  void followed_prompt(int32_t rows, Seconds time);
  // The target took so long for a step with so many rows of prompts.
  void computed_prompt(int32_t rows, Seconds time);
  // Of a step in which it is asked, without passes for further drafts; 0: not measured.
  Seconds step_cost(int32_t decoding) const {
    return steps_[class_of(decoding)].value() + catch_ups_[class_of(decoding)].value();
  }

 private:
  static constexpr int32_t kClasses = 8;  // of requests that decode
  static constexpr std::array<double, 4> kOwn = {0.0, 0.5, 1.0, 2.0};
  static constexpr int32_t kOwnClasses = std::ssize(kOwn) + 1;
  static int32_t class_of(int32_t decoding);
  static int32_t own_class_of(double own);

  struct Gain {
    double gain = 0;       // as a logarithm
    int32_t compared = 0;  // how often
    double met = 0;        // requests in steps; older ones count less
    int32_t unasked = 0;   // since it was last asked
  };
  double gain(int32_t decoding) const;
  double gain(int32_t of, int32_t own) const;

  std::array<std::array<Gain, kOwnClasses>, kClasses> gains_ = {};
  std::array<UsualTime, kClasses> steps_ = {}, catch_ups_ = {};
  UsualTime prompt_row_, target_row_;  // of prompts
  struct Probe {
    int32_t passed_by = 0;   // requests since one was tried
    int32_t after = kProbe;  // so many one is
  };
  std::array<Probe, kClasses> probes_ = {};
  Seconds for_tries_ = {};  // that is left; less than none: they took too long
};

}  // namespace quire::engine
