#include "gather.h"

#include <atomic>

namespace quire::bench {

// A thread waits inside its item, so that the next item is left to the next thread; but not for ever, because a team
// larger than the machine may never be awake as a whole.
void gather(Exec& exec) {
  constexpr int kMostLooks = 1 << 20;
  std::atomic<int> arrived{0};
  exec.parallel(exec.threads(), [&](int64_t, int) {
    arrived.fetch_add(1, std::memory_order_relaxed);
    for (int look = 0; look < kMostLooks; ++look)
      if (arrived.load(std::memory_order_relaxed) >= exec.threads()) return;
  });
}

}  // namespace quire::bench
