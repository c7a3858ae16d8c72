#include "base/device_wait.h"

#include <optional>
#include <thread>

#include "base/check.h"

namespace quire::cuda {

bool wait_for_device(const std::function<bool()>& is_there, const std::function<bool()>& is_over,
                     const WaitTimes& times) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  while (!is_there()) {
    const auto waited = Clock::now() - start;
    if (waited < times.spinning) continue;
    if (is_over()) return is_there();
    if (waited >= times.patience)
      throw DeviceError(cat("the GPU has not answered for ",
                            std::chrono::duration_cast<std::chrono::seconds>(times.patience).count(), " s"));
    std::this_thread::sleep_for(times.pause);
  }
  return true;
}

bool wait_for_device(const std::function<bool()>& is_there, Stream& stream, std::chrono::milliseconds patience) {
  std::optional<Event> end;
  const auto is_over = [&] {
    if (!end) end.emplace().record(stream);
    return end->is_over();
  };
  return wait_for_device(is_there, is_over, {.patience = patience});
}

void wait_for_stream(Stream& stream) {
  Event end;
  end.record(stream);
  const auto is_over = [&] { return end.is_over(); };
  wait_for_device(is_over, is_over, {.patience = kStreamPatience});
}

}  // namespace quire::cuda
