// For tests: the most memory that a piece of work held at once, counted by what `new` gave it. It replaces the
// operators, so one file of a program includes it.
#pragma once
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace quire::testing {

inline std::atomic<size_t> live_bytes{0}, peak_bytes{0};

inline void* counted(size_t size) {
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  const size_t now = live_bytes += malloc_usable_size(memory);
  for (size_t most = peak_bytes; most < now && !peak_bytes.compare_exchange_weak(most, now);) {
  }
  return memory;
}

inline void uncounted(void* memory) {
  if (memory) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

template <class Work>
size_t peak_of(Work&& work) {
  const size_t before = live_bytes;
  peak_bytes = before;
  work();
  return peak_bytes - before;
}

}  // namespace quire::testing

void* operator new(size_t size) { return quire::testing::counted(size); }
void* operator new[](size_t size) { return quire::testing::counted(size); }
// The sanitizers' own would not call the one above, and its memory comes to the delete below.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return quire::testing::counted(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { quire::testing::uncounted(memory); }
void operator delete[](void* memory) noexcept { quire::testing::uncounted(memory); }
void operator delete(void* memory, size_t) noexcept { quire::testing::uncounted(memory); }
void operator delete[](void* memory, size_t) noexcept { quire::testing::uncounted(memory); }
