// A build of its own (QUIRE_SLOWED_KERNELS) in which kernels can be made late, to see that those after them wait: every
// fourth kernel of a stream stands still for a while after it has let the next ones in and before it writes anything.
// Whoever reads its results without waiting for it, or waits for one that has not waited itself, reads what was there
// before; and buffers of a step are filled with bytes that are no number before it begins.
//
// Which of four is late is told before kernels are launched or recorded; `none` starts no kernel early, so its results
// are those of the kernels one after the other.
#pragma once
#include <cstdint>

namespace quire::cuda {

struct SlowedKernels {
  static constexpr int32_t kEvery = 4, kNone = -1;
  int32_t late = kNone;  // of each kEvery launches
  int64_t launches = 0;

  bool next_is_late() { return launches++ % kEvery == late; }
};
inline SlowedKernels slowed_kernels;

}  // namespace quire::cuda
