// Owners of memory. A Buffer on the host is address space taken from the system and never filled: making one costs the
// same for a kilobyte and for a gigabyte, and pages become resident when they are first written. Memory of the GPU and
// pinned memory are taken whole, and not filled either.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

enum class Place : uint8_t {
  host,
  host_huge_pages,  // of the host, in huge pages where the system has them
  pinned,           // of the host, and the GPU reads and writes it by the same address
  device,           // of the GPU alone
};

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, Place place = Place::host);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Place place_ = Place::host;
};

}  // namespace quire
