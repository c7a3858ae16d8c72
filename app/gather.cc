#include "gather.h"

#include <atomic>

namespace quire::bench {
namespace {

struct Gathering {
  std::atomic<int>* arrived;
  int expected;
};

// A thread waits inside its item, so that the next item is left to the next thread; but not for ever, because a team
// larger than the machine may never be awake as a whole.
void arrive(const void* context, int64_t, int) {
  constexpr int kMostLooks = 1 << 20;
  const auto& gathering = *static_cast<const Gathering*>(context);
  gathering.arrived->fetch_add(1, std::memory_order_relaxed);
  for (int look = 0; look < kMostLooks; ++look)
    if (gathering.arrived->load(std::memory_order_relaxed) >= gathering.expected) return;
}

}  // namespace

void gather(Exec& exec) {
  std::atomic<int> arrived{0};
  const Gathering gathering{&arrived, exec.threads()};
  exec.parallel(exec.threads(), arrive, &gathering);
}

}  // namespace quire::bench
