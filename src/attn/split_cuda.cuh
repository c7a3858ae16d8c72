// What the thread blocks of split-KV leave each other: partial results of rows that several of them have keys of, and a
// count of who arrived. The last to arrive merges them, in the order of their keys: decode as its warps meet, four
// columns of a row at a time, the others as a warpgroup's products leave them (split_rows_cuda.cuh).
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

// In the workspace; `rows` rows for each split, of `dim` columns.
struct PartialResults {
  float* out;  // [splits, rows, dim] sums of weighted values, relative to 2^max
  float* max;  // [splits, rows]
  float* sum;

  static PartialResults in(const MetadataArena& arena) {
    return {arena.floats(Buf::split_partial_out), arena.floats(Buf::split_partial_max),
            arena.floats(Buf::split_partial_sum)};
  }
};

// Whether `own` partial results are the last to arrive of `all`. By one thread, with barriers of those that stored
// before it and of those that will read after it: that one thread releases and acquires is enough. The last one leaves
// the count at zero for the next layer.
inline __device__ bool arrive_last(int32_t* arrivals, int32_t own, int32_t all) {
  const bool is_last = count_arrivals(arrivals, own) + own == all;
  if (is_last) *arrivals = 0;
  return is_last;
}

}  // namespace quire::attn::cuda
