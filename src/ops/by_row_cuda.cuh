// Operations by row on the GPU: how rows are cut over blocks, and four numbers of a row at a time.
//
// The bits are the CPU's, so every rounding is written out (__fmul_rn and its kin), and the compiler fuses nothing.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"
#include "base/tensor.h"
#include "ops/rms_norm.h"

namespace quire::ops::cuda {

using quire::cuda::check_cuda;
using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;
using quire::cuda::launch_after;
using quire::cuda::stream_of;

inline constexpr int32_t kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr int32_t kFour = 4;

// A thread takes four numbers that lie side by side. `vectors`: their addresses are multiples of their size, and rows
// have whole fours.
__device__ inline float4 load_four(const float* row, int64_t at, int64_t dim, bool vectors) {
  if (vectors) return *reinterpret_cast<const float4*>(row + at);
  return {row[at], at + 1 < dim ? row[at + 1] : 0.0f, at + 2 < dim ? row[at + 2] : 0.0f,
          at + 3 < dim ? row[at + 3] : 0.0f};
}
__device__ inline void store_four(float* row, int64_t at, int64_t dim, bool vectors, float4 x) {
  if (vectors) {
    *reinterpret_cast<float4*>(row + at) = x;
    return;
  }
  row[at] = x.x;
  if (at + 1 < dim) row[at + 1] = x.y;
  if (at + 2 < dim) row[at + 2] = x.z;
  if (at + 3 < dim) row[at + 3] = x.w;
}

inline bool is_multiple(const void* address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }
// May rows of f32 be read and written in fours?
template <class T>
bool has_vectors(const Rows<T>& rows) {
  return rows.dim % kFour == 0 && rows.stride % kFour == 0 && is_multiple(rows.data, sizeof(float4));
}

// Where rows are cut into pieces: one block a piece, grid: rows, pieces.
inline constexpr int32_t kPieceThreads = 256;
inline constexpr int64_t kPiece = int64_t{kPieceThreads} * kFour;
__device__ inline int64_t first_of_thread() { return blockIdx.y * kPiece + int64_t{threadIdx.x} * kFour; }

template <class Args>
void launch_by_piece(void (*kernel)(Args), const Args& args, const int32_t* live_rows, int64_t rows, int64_t dim,
                     const char* name, Exec& exec) {
  check(live_rows != nullptr, name, " needs the address of the live row count");
  const cudaStream_t stream = stream_of(exec);
  if (rows == 0) return;
  const dim3 grid(static_cast<uint32_t>(rows), static_cast<uint32_t>((dim + kPiece - 1) / kPiece));
  launch_after(kernel, grid, kPieceThreads, 0, stream, name, args);
}

// --- norms

// 1 / sqrt(mean(x^2) + eps)
__device__ inline float rms_scale(float squares, int64_t dim, float eps) {
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(dim)), eps)));
}

// Squares of a row as ref::rms_scale adds them up. kSquareThreads threads have four lanes each, thread i lanes 4 i to
// 4 i + 3; these fold by halves: first those of threads 128, 64 and 32 behind, then inside a warp.
inline constexpr int32_t kSquareThreads = kSquareLanes / kFour, kSquareWarps = kSquareThreads / kWarp;
__device__ inline float4 add_squares(float4 x, float4 to) {
  return {__fmaf_rn(x.x, x.x, to.x), __fmaf_rn(x.y, x.y, to.y), __fmaf_rn(x.z, x.z, to.z), __fmaf_rn(x.w, x.w, to.w)};
}
__device__ inline float4 add_lanes(float4 a, float4 b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ inline float fold_warp(float4 lanes) {  // all of the warp get the sum
#pragma unroll
  for (int32_t half = kWarp / 2; half > 0; half /= 2)
    lanes = add_lanes(lanes, {__shfl_down_sync(kAllLanes, lanes.x, half), __shfl_down_sync(kAllLanes, lanes.y, half),
                              __shfl_down_sync(kAllLanes, lanes.z, half), __shfl_down_sync(kAllLanes, lanes.w, half)});
  return __shfl_sync(kAllLanes, __fadd_rn(__fadd_rn(lanes.x, lanes.z), __fadd_rn(lanes.y, lanes.w)), 0);
}

// By a block, of which thread i comes with its lanes; all get the sum. of_threads: [kSquareThreads] in shared memory.
__device__ inline float fold_squares(float4 own, float4* of_threads) {
  of_threads[threadIdx.x] = own;
  __syncthreads();
  float4 lanes[kSquareWarps];
#pragma unroll
  for (int32_t i = 0; i < kSquareWarps; ++i) {
    const uint32_t at = threadIdx.x % kWarp + i * kWarp;
    lanes[i] = at < blockDim.x ? of_threads[at] : float4{};
  }
#pragma unroll
  for (int32_t half = kSquareWarps / 2; half > 0; half /= 2)
#pragma unroll
    for (int32_t i = 0; i < half; ++i) lanes[i] = add_lanes(lanes[i], lanes[i + half]);
  return fold_warp(lanes[0]);
}

// By one warp, of a row of so many fours in shared memory: it stands for all threads, those that fold first together.
__device__ inline float squares_by_a_warp(const float4* row, int32_t fours) {
  constexpr int32_t kHalf = kSquareWarps / 2;
  float4 lanes[kHalf];
#pragma unroll
  for (int32_t i = 0; i < kHalf; ++i) {
    float4 first = {}, second = {};
#pragma unroll 4
    for (int32_t at = threadIdx.x % kWarp + i * kWarp; at < fours; at += kSquareThreads) {
      first = add_squares(row[at], first);
      if (at + kSquareThreads / 2 < fours) second = add_squares(row[at + kSquareThreads / 2], second);
    }
    lanes[i] = add_lanes(first, second);
  }
  return fold_warp(add_lanes(add_lanes(lanes[0], lanes[2]), add_lanes(lanes[1], lanes[3])));
}

// The scale of few numbers in shared memory, by a warp, which all get it: a thread has every 32nd lane, so the first
// folds are its own.
__device__ inline float rms_scale(const float* x, int64_t dim, float eps) {
  constexpr int32_t kOwn = kSquareLanes / kWarp;
  float lanes[kOwn] = {};
  const auto add_squares = [&](const float* own, int64_t left) {
#pragma unroll
    for (int32_t k = 0; k < kOwn; ++k)
      if (k * kWarp < left) lanes[k] = __fmaf_rn(own[k * kWarp], own[k * kWarp], lanes[k]);
  };
  int64_t i = threadIdx.x % kWarp;
  for (; i + (kOwn - 1) * kWarp < dim; i += kSquareLanes) add_squares(x + i, kSquareLanes);
  add_squares(x + i, dim - i);
#pragma unroll
  for (int32_t half = kOwn / 2; half > 0; half /= 2)
#pragma unroll
    for (int32_t k = 0; k < half; ++k) lanes[k] = __fadd_rn(lanes[k], lanes[k + half]);
  float sum = lanes[0];
#pragma unroll
  for (int32_t half = kWarp / 2; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, half));
  return rms_scale(__shfl_sync(kAllLanes, sum, 0), dim, eps);
}

__device__ inline float4 normed(float4 x, float scale, float4 weight) {
  return {__fmul_rn(__fmul_rn(x.x, scale), weight.x), __fmul_rn(__fmul_rn(x.y, scale), weight.y),
          __fmul_rn(__fmul_rn(x.z, scale), weight.z), __fmul_rn(__fmul_rn(x.w, scale), weight.w)};
}

// A kernel that keeps a row in shared memory may need more than it has unasked.
template <class Args>
void allow_shared(void (*kernel)(Args), int64_t bytes, const char* name) {
  constexpr int64_t kUnasked = 48 << 10, kMost = 224 << 10;
  check(bytes <= kMost, name, " of ", bytes / int64_t{sizeof(float)}, " numbers, more than a block's memory holds");
  if (bytes <= kUnasked) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name,
             " has no shared memory of ", bytes, " bytes");
}

}  // namespace quire::ops::cuda
