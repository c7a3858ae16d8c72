#include "base/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/cuda.h"

namespace quire {

namespace {

// MAP_NORESERVE: a pool sized for the longest context must not be refused, or counted against the machine,
// for memory that it may never touch.
std::byte* map(size_t bytes, bool huge_pages) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(mapped != MAP_FAILED, "cannot map a buffer of ", bytes, " bytes: ", std::strerror(errno));
  // Only advice: kernels without transparent huge pages refuse it, and the memory works all the same.
  if (huge_pages) madvise(mapped, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(mapped);
}

std::byte* allocate(size_t bytes, Place place) {
  switch (place) {
    case Place::pinned:
      return cuda::allocate_pinned(bytes);
    case Place::device:
      return cuda::allocate_device(bytes);
    default:
      return map(bytes, place == Place::host_huge_pages);
  }
}

}  // namespace

Buffer::Buffer(size_t bytes, Place place) : place_(place) {
  if (bytes == 0) return;
  data_ = allocate(bytes, place);
  size_ = bytes;
}

Buffer::Buffer(size_t bytes, MemoryPool& pool) {
  if (bytes == 0) return;
  data_ = pool.take(bytes);
  size_ = bytes;
  pool_ = &pool;
}

Buffer::~Buffer() {
  if (!data_) return;
  if (pool_)
    pool_->give_back();
  else if (place_ == Place::pinned)
    cuda::free_pinned(data_);
  else if (place_ == Place::device)
    cuda::free_device(data_);
  else
    munmap(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      place_(other.place_),
      pool_(other.pool_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(place_, taken.place_);
  std::swap(pool_, taken.pool_);
  return *this;
}

std::byte* MemoryPool::take(size_t bytes) {
  constexpr size_t kPieceAlign = 256;  // as a driver aligns what it gives
  const size_t whole = (bytes + kPieceAlign - 1) / kPieceAlign * kPieceAlign;
  check(whole >= bytes && whole <= left(), "a pool of ", memory_.size(), " bytes has ", left(), " left, not ", bytes);
  std::byte* const taken = memory_.data() + used_;
  used_ += whole;
  ++pieces_;
  return taken;
}

void MemoryPool::give_back() noexcept {
  if (--pieces_ == 0) used_ = 0;
}

}  // namespace quire
