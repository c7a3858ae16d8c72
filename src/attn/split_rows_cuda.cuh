// Partial results of split-KV (split_cuda.cuh) by a warpgroup, whose products leave it the sums of 64 rows: a thread
// has two of them (lane_row(), and the eighth below) and two of each eight columns.
#pragma once
#include <cstdint>

#include "attn/softmax_cuda.cuh"
#include "attn/split_cuda.cuh"

namespace quire::attn::cuda {

// Where the warpgroup's rows of all splits lie in the workspace: those of split i from first + i * distance on.
struct SplitRows {
  int64_t first;
  int32_t distance;
  int32_t rows;  // that are there
};

// The columns that are the warpgroup's: from `column` on, of `dim`.
struct PartialColumns {
  PartialResults all;
  SplitRows rows;
  int32_t dim, column;

  // The first two of the thread's; the others follow at distances of eight.
  __device__ float2* at(int64_t row) const {
    return reinterpret_cast<float2*>(all.out + row * dim + column + threadIdx.x % 4 * 2);
  }
  __device__ bool has_stats() const { return column == 0 && threadIdx.x % 4 == 0; }  // one thread keeps a row's
};

// stats: of whole rows.
template <int32_t kHalf>
__device__ void store_partial(const PartialColumns& partial, int32_t split, const Softmax& stats,
                              const float (&out)[kHalf]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = lane_row() + half * 8;
    if (row >= partial.rows.rows) continue;
    const int64_t at = partial.rows.first + int64_t{split} * partial.rows.distance + row;
    float2* const to = partial.at(at);
#pragma unroll
    for (int32_t n = 0; n < kHalf / 4; ++n) __stcg(to + n * 4, {out[4 * n + 2 * half], out[4 * n + 2 * half + 1]});
    if (partial.has_stats()) {
      __stcg(partial.all.max + at, stats.row_max[half]);
      __stcg(partial.all.sum + at, stats.sum[half]);
    }
  }
}

// Into the registers of the threads that would have had the sums alone.
template <int32_t kHalf>
__device__ void merge_splits(const PartialColumns& partial, int32_t splits, Softmax& stats, float (&out)[kHalf]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = min(lane_row() + half * 8, partial.rows.rows - 1);  // those past the last are not written
    const auto at = [&](int32_t split) { return partial.rows.first + int64_t{split} * partial.rows.distance + row; };
    float row_max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < splits; ++i) row_max = fmaxf(row_max, __ldcg(partial.all.max + at(i)));
#pragma unroll
    for (int32_t n = 0; n < kHalf / 4; ++n) out[4 * n + 2 * half] = out[4 * n + 2 * half + 1] = 0;
    for (int32_t i = 0; i < splits; ++i) {
      const float share = row_max == -INFINITY ? 0 : fast_exp2(__ldcg(partial.all.max + at(i)) - row_max);
      sum += share * __ldcg(partial.all.sum + at(i));
      const float2* const from = partial.at(at(i));
#pragma unroll
      for (int32_t n = 0; n < kHalf / 4; ++n) {
        const float2 both = __ldcg(from + n * 4);
        out[4 * n + 2 * half] += share * both.x;
        out[4 * n + 2 * half + 1] += share * both.y;
      }
    }
    stats.row_max[half] = row_max;
    stats.sum[half] = sum;
  }
}

}  // namespace quire::attn::cuda
