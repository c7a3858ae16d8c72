#include "allocation_counter.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int64_t> counted{0};

}  // namespace

int64_t quire::testing::allocations() { return counted.load(); }

// A sanitizer's allocator stands where ours would, and calls a hook instead. Not every compiler has the header that
// declares how to install it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));

namespace {

const int installed = __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { ++counted; },
                                                                [](const volatile void*) {});

}  // namespace

#else

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  ++counted;
  return __libc_malloc(bytes);
}

void* calloc(size_t count, size_t bytes) {
  ++counted;
  return __libc_calloc(count, bytes);
}

void* realloc(void* old, size_t bytes) {
  ++counted;
  return __libc_realloc(old, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  ++counted;
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** out, size_t alignment, size_t bytes) {
  ++counted;
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}

void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  ++counted;
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

}  // extern "C"

#endif
