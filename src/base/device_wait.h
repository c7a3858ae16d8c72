// Waiting for what a GPU says in pinned memory, with patience that ends: a kernel that hangs would hold up everybody
// for ever, and nobody would be told.
//
// First the host spins, since answers come in microseconds. What takes longer is looked at now and then, and the host
// sleeps in between.
//
// Errors   DeviceError: what a fault of the device left behind, or that it has not answered in time. After the latter
//          it may hang: whoever frees its memory waits for it again.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>

#include "base/cuda.h"

namespace quire::cuda {

// For a step, which takes some milliseconds, and for each of its rows, which takes far less: prompts that a slow kernel
// attends to over a long context have minutes.
inline constexpr std::chrono::seconds kPatience{60};
inline constexpr std::chrono::milliseconds kPatienceOfARow{20};
constexpr std::chrono::milliseconds patience_for(int64_t rows) { return kPatience + rows * kPatienceOfARow; }

struct WaitTimes {
  std::chrono::milliseconds patience = kPatience;
  std::chrono::milliseconds spinning{1000};
  std::chrono::milliseconds pause{1};
};

// Until is_there(). is_over: whether the device has done all that it was given by now; asked after spinning alone, and
// throws what a fault left behind. False: it is over, and nothing is there.
bool wait_for_device(const std::function<bool()>& is_there, const std::function<bool()>& is_over,
                     const WaitTimes& times);
bool wait_for_device(const std::function<bool()>& is_there, Stream& stream, std::chrono::milliseconds patience);

// Until the stream has done what it was given, steps with prompts among it.
inline constexpr std::chrono::minutes kStreamPatience{5};
void wait_for_stream(Stream& stream);

}  // namespace quire::cuda
