#include "serve/metrics_rate.h"

#include <algorithm>

namespace quire::serve {

namespace {

uint32_t second_of(double now) { return static_cast<uint32_t>(now); }
uint32_t second_in(uint64_t slot) { return static_cast<uint32_t>(slot >> 32); }
uint32_t count_in(uint64_t slot) { return static_cast<uint32_t>(slot); }

}  // namespace

void Rate::add(int32_t count, double now) {
  const uint32_t second = second_of(now);
  std::atomic<uint64_t>& slot = slots_[second % slots_.size()];
  uint64_t held = slot.load(std::memory_order_relaxed);
  uint64_t wanted;
  do {
    const uint32_t before = second_in(held) == second ? count_in(held) : 0;
    wanted = uint64_t{second} << 32 | (before + static_cast<uint32_t>(count));
  } while (!slot.compare_exchange_weak(held, wanted, std::memory_order_relaxed));
}

double Rate::per_second(double now) const {
  const uint32_t second = second_of(now);
  int64_t count = 0;
  for (const std::atomic<uint64_t>& slot : slots_) {
    const uint64_t held = slot.load(std::memory_order_relaxed);
    if (second_in(held) <= second && second - second_in(held) <= kSeconds) count += count_in(held);
  }
  // Right after the start there are fewer seconds to count.
  return static_cast<double>(count) / std::max(1.0, std::min(now, now - second + kSeconds));
}

}  // namespace quire::serve
