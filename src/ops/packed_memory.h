// Memory of packed weights. Most matrices are smaller than a huge page, and streaming through small pages was measured
// to cost a quarter of the bandwidth; so small matrices that are made one after the other share large pieces, and a
// piece goes back to the system with the last of them.
//
// Any thread may allocate. The memory is 64-byte aligned and holds zeros.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "base/buffer.h"

namespace quire::ops {

class PackedMemory {
 public:
  PackedMemory() = default;
  explicit PackedMemory(size_t bytes);
  PackedMemory(PackedMemory&& other) noexcept
      : piece_(std::move(other.piece_)), bytes_(std::exchange(other.bytes_, {})) {}
  PackedMemory& operator=(PackedMemory&& other) noexcept {
    piece_ = std::move(other.piece_);
    bytes_ = std::exchange(other.bytes_, {});
    return *this;
  }

  std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::shared_ptr<const Buffer> piece_;
  std::span<std::byte> bytes_;
};

}  // namespace quire::ops
