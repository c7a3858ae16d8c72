// How kernels that split over keys cut their work: units of all sequences, one after the other, in equal runs.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"

namespace quire::attn::cuda {

// Sum of `own` over the threads before this one, and of all of them in `total`. `sums` is the block's; it meets before
// the next call.
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

// The runs, each the units [begin(run), begin(run + 1)).
struct Runs {
  int32_t count, each, longer;  // every run has `each` units, the first `longer` ones have one more

  // As many as `most`, but none that is empty.
  __device__ static Runs of(int32_t total, int32_t most) {
    const int32_t count = min(total, most), each = count ? total / count : 0;
    return {count, each, total - each * count};
  }
  __device__ int32_t begin(int32_t run) const { return run * each + min(run, longer); }
  __device__ int32_t run_of(int32_t unit) const {
    const int32_t in_longer = longer * (each + 1);
    return unit < in_longer ? unit / (each + 1) : longer + (unit - in_longer) / each;
  }
};

}  // namespace quire::attn::cuda
