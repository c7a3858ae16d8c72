// Counts every request for memory that the process makes, on all its threads: the allocator's calls and mmap. A program
// that links it has those calls pass through here.
#pragma once
#include <cstdint>

namespace quire::testing {

int64_t allocations();  // since the process began

// A sanitizer maps memory before anything of the program is ready to run: under one only its allocator is counted.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsMappings = false;
#else
inline constexpr bool kCountsMappings = true;
#endif

}  // namespace quire::testing
