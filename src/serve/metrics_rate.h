// How many things happened in the last seconds, per second. Counted from many threads without a lock.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>

namespace quire::serve {

class Rate {
 public:
  // `now`: seconds of a steady clock that began at zero or later.
  void add(int32_t count, double now);
  double per_second(double now) const;

 private:
  static constexpr int kSeconds = 5;  // whole ones that count, beside the one that has begun
  // One slot a second: the second in the upper half, its count in the lower, so that both change at once.
  std::array<std::atomic<uint64_t>, kSeconds + 2> slots_{};
};

}  // namespace quire::serve
