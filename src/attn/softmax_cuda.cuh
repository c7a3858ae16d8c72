// The online softmax of a warpgroup's 64 rows, as its products leave the scores: a thread has two rows of them
// (lane_row(), and the eighth below) and two of each eight keys; four lanes have a row together. Scores are of kKeys
// keys.
//
// Probabilities are powers of two, relative to a maximum that is the row's or an earlier one of it: `factor` takes a
// score to the exponent.
#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "attn/attend_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

constexpr float kRescaleThreshold = 8;  // see online_softmax()

inline __device__ int32_t lane_row() {
  const int32_t thread = threadIdx.x % hopper::kWarpgroup;
  return thread / kWarp * 16 + thread % kWarp / 4;
}

// Of the thread's two rows, so far.
struct Softmax {
  float row_max[2] = {-INFINITY, -INFINITY};  // what probabilities are relative to, to powers of two
  float sum[2] = {0, 0};                      // of this thread's keys alone until the end
};

// Keys [first, end) that the thread's two rows see.
struct SeenByTwo {
  int32_t first[2], end[2];
};

template <int32_t kKeys>
__device__ void cap(float (&scores)[kKeys / 2], float softcap, float cap_scale) {
#pragma unroll
  for (float& score : scores) {
    const float both = fast_exp2(score * cap_scale * (2 * kLog2e));  // tanh x = 1 - 2 / (1 + e^2x)
    score = softcap * (1 - __fdividef(2.0f, 1 + both));
  }
}

// kKeys keys from `first` on; those before the ones that rows see, and those after them.
template <int32_t kKeys>
__device__ void mask_before(float (&scores)[kKeys / 2], const SeenByTwo& seen, int32_t first) {
  const int32_t column = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int32_t i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + i % 2 < seen.first[i / 2 % 2] - column) scores[i] = -INFINITY;
}
template <int32_t kKeys>
__device__ void mask_after(float (&scores)[kKeys / 2], const SeenByTwo& seen, int32_t first) {
  const int32_t column = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int32_t i = 0; i < kKeys / 2; ++i)
    if (i / 4 * 8 + i % 2 >= seen.end[i / 2 % 2] - column) scores[i] = -INFINITY;
}

// Where branches lie behind the keys in pages: those past the latter that are not of a row's own branch.
template <int32_t kKeys>
__device__ void mask_branches(float (&scores)[kKeys / 2], const SeenByTwo& pages, const SeenByTwo& branch,
                              int32_t first) {
  const int32_t column = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int32_t i = 0; i < kKeys / 2; ++i) {
    const int32_t key = column + i / 4 * 8 + i % 2, half = i / 2 % 2;
    const bool is_own = key >= branch.first[half] && key < branch.end[half];
    if (key >= pages.end[half] && !is_own) scores[i] = -INFINITY;
  }
}

// Probabilities of pairs of scores, relative to each row's base, which `put` is given with the place of the first, and
// their sums, in chains side by side.
template <int32_t kKeys, class Put>
__device__ void exponentiate(const float (&scores)[kKeys / 2], float factor, const float (&base)[2], float (&sum)[2],
                             const Put& put) {
  float chains[2][2];
#pragma unroll
  for (int32_t i = 0; i < kKeys / 2; i += 2) {
    const int32_t half = i / 2 % 2;
    const float low = fast_exp2(fmaf(scores[i], factor, -base[half]));
    const float high = fast_exp2(fmaf(scores[i + 1], factor, -base[half]));
    chains[half][0] = i < 4 ? low : chains[half][0] + low;
    chains[half][1] = i < 4 ? high : chains[half][1] + high;
    put(i, low, high);
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) sum[half] = chains[half][0] + chains[half][1];
}

// Scores become probabilities; rescale: what earlier sums are multiplied by. The maximum that probabilities are
// relative to is an earlier one as long as no probability is more than 2^kRescaleThreshold for it: sums then stay as
// they are.
template <int32_t kKeys>
__device__ void online_softmax(float (&scores)[kKeys / 2], float factor, Softmax& rows, float (&rescale)[2]) {
  constexpr int32_t kChains = 4;  // of each row, side by side: a warp has its unit to itself and must not wait
  const auto chain = [](int32_t i) { return i / 4 % 2 * 2 + i % 2; };
  float row_maxes[2][kChains], base[2], sum[2];
#pragma unroll
  for (int32_t i = 0; i < kKeys / 2; ++i) {
    float& row_max = row_maxes[i / 2 % 2][chain(i)];
    row_max = i < 8 ? scores[i] : fmaxf(row_max, scores[i]);
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const float(&of)[kChains] = row_maxes[half];
    float row_max = quad_max(fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]))) * factor;
    if (!(row_max - rows.row_max[half] > kRescaleThreshold)) row_max = rows.row_max[half];
    base[half] = row_max == -INFINITY ? 0 : row_max;
    rescale[half] = fast_exp2(rows.row_max[half] - base[half]);
    rows.row_max[half] = row_max;
  }
  exponentiate<kKeys>(scores, factor, base, sum, [&](int32_t i, float low, float high) {
    scores[i] = low;
    scores[i + 1] = high;
  });
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) rows.sum[half] = fmaf(rows.sum[half], rescale[half], sum[half]);
}

// Probabilities of scores, as operands of products, where every row sees every key, and had some before: relative to
// what those were relative to, whatever the greatest score is now. That saves the maximum, which is a third of the
// softmax, and the rescaling. False, for a warp: some sum of its rows became too large, and nothing was changed. The
// answer needs all of the sums also for the assembler's sake: it would move all of the softmax behind the wait for
// products that comes next, were there no branch that needs its end.
template <class T, int32_t kKeys>
__device__ bool stale_softmax(const float (&scores)[kKeys / 2], float factor, Softmax& rows,
                              uint32_t (&probs)[kKeys / 4]) {
  // Probabilities keep their digits whatever their size, as long as they and their products with values are numbers.
  constexpr float kMostSum = std::is_same_v<T, __half> ? 0x1p14f : 0x1p60f;
  float base[2], sum[2];
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) base[half] = rows.row_max[half] == -INFINITY ? 0 : rows.row_max[half];
  exponentiate<kKeys>(scores, factor, base, sum,
                      [&](int32_t i, float low, float high) { probs[i / 2] = pair<T>(low, high); });
  if (__any_sync(~0u, !(sum[0] + sum[1] <= kMostSum))) return false;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) rows.sum[half] += sum[half];
  return true;
}

// Sums of two groups of eight columns are, in pairs, the operand of 16 probabilities.
template <class T, int32_t kHalf>
__device__ void pack(const float (&scores)[kHalf], uint32_t (&probs)[kHalf / 2]) {
#pragma unroll
  for (int32_t i = 0; i < kHalf / 2; ++i) probs[i] = pair<T>(scores[2 * i], scores[2 * i + 1]);
}

}  // namespace quire::attn::cuda
