// A step's inputs, read from pinned memory by a kernel: a copy of a few kilobytes would take the GPU three times as
// long to begin and to end.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/exec.h"

namespace quire::attn::cuda {

// Arrays that begin at multiples of 16 bytes, and may be read and written to the next multiple past their end.
struct FetchArgs {
  static constexpr int32_t kMostArrays = 24;
  struct Array {
    uint32_t offset, bytes;
  };
  const std::byte* from;  // pinned
  std::byte* to;          // the device's
  std::array<Array, kMostArrays> arrays;
  int32_t count;
};
void fetch(const FetchArgs& args, Exec& exec);

}  // namespace quire::attn::cuda
