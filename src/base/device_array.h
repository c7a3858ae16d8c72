// Numbers that a device reads and nobody writes any more (norms, biases, frequencies, an embedding), in that device's
// own memory: the one owner for the CPU and the GPU.
//
// After    data() is an address of exec's device, the same for life. The source is not needed any longer.
#pragma once
#include <cstddef>
#include <span>
#include <utility>

#include "base/buffer.h"
#include "base/exec.h"

namespace quire {

// Where memory lies that exec's operations alone read and write.
inline Place place_of(Device device, Place on_cpu = Place::host) {
  return device == Device::cuda ? Place::device : on_cpu;
}

Buffer copied_to_device(std::span<const std::byte> bytes, Exec& exec);

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(std::span<const T> values, Exec& exec)
      : memory_(copied_to_device(std::as_bytes(values), exec)), size_(values.size()) {}
  DeviceArray(DeviceArray&& other) noexcept : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    memory_ = std::move(other.memory_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }  // null when empty
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  Buffer memory_;
  size_t size_ = 0;
};

}  // namespace quire
