// What the fuzz targets share. A target feeds a reader of untrusted bytes and expects one of two things: it works, or
// it refuses with CheckError. Anything else (another exception, a sanitizer's report, a broken promise, a long wait) is
// a finding.
//
// Build and run: fuzz/run SECONDS [TARGET...]
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace quire::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

template <class Body>
void attempt(Body&& body) {
  try {
    body();
  } catch (const CheckError&) {
  }
}

// What a header promises of its results.
inline void promise(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "a promise is broken: %s\n", what);
  std::abort();
}

}  // namespace quire::fuzz
