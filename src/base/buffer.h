// Owners of memory. A Buffer on the host is address space taken from the system and never filled: making one costs the
// same for a kilobyte and for a gigabyte, and pages become resident when they are first written. Memory of the GPU and
// pinned memory are taken whole, and not filled either. What is made often comes from a MemoryPool.
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

class MemoryPool;

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, Place place = Place::host);
  Buffer(size_t bytes, MemoryPool& pool);  // a piece of the pool, which outlives it
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
  MemoryPool* pool_ = nullptr;  // where it came from; null: from the system or the driver
};

// Memory that is taken once, so that making buffers of it asks nobody: a driver needs milliseconds for what this does
// in nanoseconds. Pieces are cut off one after the other; when all of them have come back, the whole is there again. A
// piece of a GPU's memory comes back after the work on it has been waited for. Not for several threads at a time.
class MemoryPool {
 public:
  MemoryPool(size_t bytes, Place place) : memory_(bytes, place) {}
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  size_t left() const { return memory_.size() - used_; }

 private:
  friend class Buffer;
  std::byte* take(size_t bytes);  // throws CheckError when that much is not left
  void give_back() noexcept;

  Buffer memory_;
  size_t used_ = 0;
  int64_t pieces_ = 0;
};

}  // namespace quire
