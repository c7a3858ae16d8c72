#include "base/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quire {

// MAP_NORESERVE: a pool sized for the longest context must not be refused, or counted against the machine,
// for memory that it may never touch.
Buffer::Buffer(size_t bytes, Advice advice) {
  if (bytes == 0) return;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  check(mapped != MAP_FAILED, "cannot map a buffer of ", bytes, " bytes: ", std::strerror(errno));
  // Only advice: kernels without transparent huge pages refuse it, and the memory works all the same.
  if (advice == Advice::huge_pages) madvise(mapped, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
  size_ = bytes;
}

Buffer::~Buffer() {
  if (data_) munmap(data_, size_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

}  // namespace quire
