// Owners of memory. A Buffer is address space taken from the system and never filled: making one costs
// the same for a kilobyte and for a gigabyte, and pages become resident when they are first written.
#pragma once
#include <cstddef>
#include <span>

namespace quire {

class Buffer {
 public:
  enum class Advice { none, huge_pages };

  Buffer() = default;
  explicit Buffer(size_t bytes, Advice advice = Advice::none);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace quire
