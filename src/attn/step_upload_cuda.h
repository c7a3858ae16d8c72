// A step's inputs, read from pinned memory by a kernel, the first of the step: a copy of a few kilobytes would take the
// GPU three times as long to begin and to end. Decode steps have one that writes their metadata too
// (write_decode_cuda.h).
#pragma once
#include <array>
#include <cstdint>

#include "attn/step.h"
#include "base/exec.h"

namespace quire::attn::cuda {

// Arrays that begin at multiples of 16 bytes, and may be read and written to the next multiple past their end.
struct FetchArgs {
  static constexpr int32_t kMostArrays = 24;
  struct Array {
    uint32_t offset, bytes;  // in a copy
  };
  StepInputs in;  // with their source
  std::array<Array, kMostArrays> arrays;
  int32_t count;
  uint32_t tokens;  // which of them is input_ids
};
// Of so many sequences and rows as the shape has, without what goes to the page table's mirror: that is read before.
FetchArgs fetch_args(const StepShape& shape, const StepInputs& inputs, const Limits& limits);
void fetch(const FetchArgs& args, Exec& exec);

}  // namespace quire::attn::cuda
