// Stream-K (stream_k.h) in a block: every block makes the line of units for itself.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/stream_k.h"

namespace quire::attn::cuda {

// Sum of `own` over the threads before this one, and of all of them in `total`. `sums` is the block's, which
// synchronises before the next call.
template <int32_t kWarps>
__device__ int32_t sum_before(int32_t own, int32_t (&sums)[kWarps], int32_t& total) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t inclusive = own;
  for (int32_t step = 1; step < kWarp; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  int32_t before = inclusive - own;
  total = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before;
}

// The line of all live sequences, by all threads: units_of(b) is asked for by one of them for each, then
// put(b, before) is told the units before it, and those of all for b = live. Nothing is asked for past the live ones:
// nobody wrote that. Returns the units of all; when it does, everybody has what was put.
template <int32_t kWarps, class UnitsOf, class Put>
__device__ int32_t lay_out_line(int32_t live, int32_t (&sums)[kWarps], const UnitsOf& units_of, const Put& put) {
  int32_t carry = 0;
  for (int32_t first = 0; first <= live; first += kWarps * kWarp) {
    const int32_t b = first + static_cast<int32_t>(threadIdx.x), own = b < live ? units_of(b) : 0;
    int32_t total;
    const int32_t before = carry + sum_before(own, sums, total);
    if (b <= live) put(b, before);
    carry += total;
    __syncthreads();
  }
  return carry;
}

}  // namespace quire::attn::cuda
