// Stream-K: how split-KV kernels share out their work. The units of all sequences are one line, one sequence after the
// other, and every worker has an equal stretch of it.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"

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

// A worker's units are [begin(worker), begin(worker + 1)).
struct StreamK {
  int32_t count, each, longer;  // `count` workers have `each` units, the first `longer` ones one more

  // As many as `most`, but none that is empty.
  __device__ static StreamK of(int32_t total, int32_t most) {
    const int32_t count = min(total, most), each = count ? total / count : 0;
    return {count, each, total - each * count};
  }
  __device__ int32_t begin(int32_t worker) const { return worker * each + min(worker, longer); }
  __device__ int32_t worker_of(int32_t unit) const {
    const int32_t in_longer = longer * (each + 1);
    return unit < in_longer ? unit / (each + 1) : longer + (unit - in_longer) / each;
  }
};

}  // namespace quire::attn::cuda
