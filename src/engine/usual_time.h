// How long something usually takes that is done again and again: a mean that forgets, in which what was held up by
// something else counts little. It begins with the least of the first few, because whoever is first finds memory that
// nobody has touched.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>

namespace quire::engine {

class UsualTime {
 public:
  using Seconds = std::chrono::duration<double>;

  Seconds value() const { return value_; }  // 0: not measured
  void add(Seconds time) {
    constexpr int32_t kFew = 8;
    constexpr double kNew = 0.1;
    if (time.count() <= 0) return;
    if (seen_ < kFew)
      value_ = seen_++ == 0 ? time : std::min(value_, time);
    else
      value_ += kNew * (std::min(time, 3 * value_) - value_);
  }

 private:
  Seconds value_ = {};
  int32_t seen_ = 0;  // up to kFew
};

}  // namespace quire::engine
