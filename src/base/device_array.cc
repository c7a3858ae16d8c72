#include "base/device_array.h"

#include <cstring>

namespace quire {

Buffer copied_to_device(std::span<const std::byte> bytes, Exec& exec) {
  Buffer memory(bytes.size(), place_of(exec.device()));
  if (bytes.empty()) return memory;
  if (cuda::Stream* const stream = exec.stream()) {
    stream->copy(memory.data(), bytes.data(), bytes.size());
    stream->wait();
  } else {
    std::memcpy(memory.data(), bytes.data(), bytes.size());
  }
  return memory;
}

}  // namespace quire
