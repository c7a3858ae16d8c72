// The processor time that this thread has used: unlike the clock it stands still while others have the processor.
#pragma once
#include <chrono>
#include <ctime>

namespace quire {

inline std::chrono::nanoseconds thread_processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace quire
