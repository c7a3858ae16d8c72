// How long the parts of a start took, one after the other, for its log.
#pragma once
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace quire {

class StartTimes {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StartTimes(Clock::time_point begin = Clock::now()) : begin_(begin), last_(begin) {}

  // The part that has just ended, which began when the one before it ended.
  void ended(std::string part, Clock::time_point now = Clock::now()) {
    parts_.emplace_back(std::move(part), seconds(now - std::exchange(last_, now)));
  }
  // What the work returns, a part of its own.
  template <class Work>
  auto timed(std::string part, const Work& work) {
    auto result = work();
    ended(std::move(part));
    return result;
  }
  std::string text() const {  // "6.1 s: weights 1.3, tokenizer 0.1, memory and graphs 4.7"
    std::string text = number(seconds(last_ - begin_)) + " s";
    for (const auto& [part, seconds] : parts_)
      text += (&part == &parts_[0].first ? ": " : ", ") + part + " " + number(seconds);
    return text;
  }

 private:
  static double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
  static std::string number(double seconds) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f", seconds);
    return text;
  }

  Clock::time_point begin_, last_;
  std::vector<std::pair<std::string, double>> parts_;
};

}  // namespace quire
