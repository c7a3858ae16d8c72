// Rotary positions on the GPU. A block takes a few heads of a row, queries or keys, through shared memory: a warp a
// head, or the whole block where all of them are normed together.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/by_row_cuda.cuh"
#include "ops/check_args.h"

namespace quire::ops::cuda {
namespace {

// --- angles

constexpr int32_t kAngleThreads = 128, kAngleBlocks = 128;

__global__ void __launch_bounds__(kAngleThreads) angles_kernel(const __grid_constant__ RopeAnglesArgs a) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t angles = int64_t{*a.live_rows} * a.half;
  const int64_t step = int64_t{gridDim.x} * kAngleThreads;
  for (int64_t i = int64_t{blockIdx.x} * kAngleThreads + threadIdx.x; i < angles; i += step) {
    const double position = a.positions[i / a.half];
    double sine, cosine;
    sincos(position * a.inverse_frequency[i % a.half], &sine, &cosine);
    a.cos[i] = static_cast<float>(cosine * a.magnitude);
    a.sin[i] = static_cast<float>(sine * a.magnitude);
  }
}

// --- rotations

constexpr int32_t kRopeThreads = 128, kRopeWarps = kRopeThreads / kWarp;

struct Rope {
  RopeArgs args;
  int32_t q_heads_in_block, k_heads_in_block;
  int32_t q_blocks;  // of a row, then those of keys
  bool vectors;
};

// What a block has: `count` heads of one kind, from head `first` on.
struct Heads {
  float* at;  // in the row
  int32_t first, count;
  const float* norm;  // of head `first`, or of all heads alike; null: none
};

__device__ Heads heads_of_block(const Rope& r, int64_t row) {
  const RopeArgs& a = r.args;
  const int32_t index = blockIdx.y;
  const bool is_query = index < r.q_blocks;
  const int32_t in_block = is_query ? r.q_heads_in_block : r.k_heads_in_block;
  const int32_t first = (is_query ? index : index - r.q_blocks) * in_block;
  const int32_t behind = is_query ? 0 : a.heads;
  return {.at = a.qkv.row(row) + int64_t{behind + first} * a.dim,
          .first = first,
          .count = min(in_block, (is_query ? a.heads : a.kv_heads) - first),
          .norm = is_query ? a.q_norm : a.k_norm};
}

// Numbers i, i + step, ... of x by the calling threads.
__device__ void norm_numbers(float* x, int32_t count, float scale, const float* weight, int32_t i, int32_t step) {
  for (; i < count; i += step) x[i] = __fmul_rn(__fmul_rn(x[i], scale), weight[i]);
}

__device__ void rotate_head(float* x, const RopeArgs& a, int64_t row) {
  const float* cosines = a.cos + row * a.half;
  const float* sines = a.sin + row * a.half;
  for (int32_t i = threadIdx.x % kWarp; i < a.half; i += kWarp) {
    float& first = a.adjacent_pairs ? x[2 * i] : x[i];
    float& second = a.adjacent_pairs ? x[2 * i + 1] : x[i + a.half];
    const float cosine = cosines[i], sine = sines[i], p = first, q = second;
    first = __fsub_rn(__fmul_rn(p, cosine), __fmul_rn(q, sine));
    second = __fadd_rn(__fmul_rn(q, cosine), __fmul_rn(p, sine));
  }
}

__device__ uint16_t narrow_bits(Dtype type, float x) {
  return type == Dtype::bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

__device__ void store_narrow(Dtype type, uint16_t* to, int64_t at, int64_t count, bool vectors, float4 x) {
  const uint16_t bits[kFour] = {narrow_bits(type, x.x), narrow_bits(type, x.y), narrow_bits(type, x.z),
                                narrow_bits(type, x.w)};
  if (vectors) {
    *reinterpret_cast<uint2*>(to + at) = {bits[0] | uint32_t{bits[1]} << 16, bits[2] | uint32_t{bits[3]} << 16};
    return;
  }
#pragma unroll
  for (int32_t k = 0; k < kFour; ++k)
    if (at + k < count) to[at + k] = bits[k];
}

// grid: rows, blocks of heads
__global__ void __launch_bounds__(kRopeThreads) rope_kernel(const __grid_constant__ Rope r) {
  extern __shared__ float4 head_memory[];
  __shared__ float scale_of_all;
  float* x = reinterpret_cast<float*>(head_memory);
  griddep_wait();
  griddep_launch_dependents();
  const RopeArgs& a = r.args;
  const int64_t row = blockIdx.x;
  if (row >= *a.live_rows) return;
  const Heads heads = heads_of_block(r, row);
  const int32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, numbers = heads.count * a.dim;

  for (int32_t at = threadIdx.x * kFour; at < numbers; at += kRopeThreads * kFour)
    head_memory[at / kFour] = load_four(heads.at, at, numbers, r.vectors);
  __syncthreads();
  if (heads.norm && a.norm_whole_row) {
    if (warp == 0) {
      const float scale = rms_scale(x, numbers, a.norm_eps);
      if (lane == 0) scale_of_all = scale;
    }
    __syncthreads();
    norm_numbers(x, numbers, scale_of_all, heads.norm, threadIdx.x, kRopeThreads);
    __syncthreads();
  }
  for (int32_t head = warp; head < heads.count; head += kRopeWarps) {
    float* own = x + head * a.dim;
    if (heads.norm && !a.norm_whole_row) {
      const float scale = rms_scale(own, a.dim, a.norm_eps);
      __syncwarp();
      norm_numbers(own, a.dim, scale, heads.norm, lane, kWarp);
      __syncwarp();
    }
    rotate_head(own, a, row);
  }
  __syncthreads();
  const bool is_query = static_cast<int32_t>(blockIdx.y) < r.q_blocks;
  std::byte* queries = is_query ? a.q.at(row, heads.first) : nullptr;
  for (int32_t at = threadIdx.x * kFour; at < numbers; at += kRopeThreads * kFour) {
    const float4 result = head_memory[at / kFour];
    if (!is_query)
      store_four(heads.at, at, numbers, r.vectors, result);
    else if (a.q.type == Dtype::f32)
      store_four(reinterpret_cast<float*>(queries), at, numbers, r.vectors, result);
    else
      store_narrow(a.q.type, reinterpret_cast<uint16_t*>(queries), at, numbers, r.vectors, result);
  }
}

int32_t blocks_for(int32_t heads, int32_t in_block) { return (heads + in_block - 1) / in_block; }

}  // namespace

void rope_angles(const RopeAnglesArgs& args, Exec& exec) {
  check_args(args);
  check(args.live_rows != nullptr, "rope angles needs the address of the live row count");
  const cudaStream_t stream = stream_of(exec);
  if (args.half == 0) return;
  launch_after(angles_kernel, dim3(kAngleBlocks), kAngleThreads, 0, stream, "rope_angles", args);
}

void rope(const RopeArgs& args, Exec& exec) {
  check_args(args);
  check(args.live_rows != nullptr, "rope needs the address of the live row count");
  const cudaStream_t stream = stream_of(exec);
  const int64_t rows = std::min(args.qkv.rows, args.q.rows);
  if (rows == 0) return;
  const auto heads_in_block = [&](int32_t heads, const float* norm) {
    return norm && args.norm_whole_row ? heads : std::min(heads, kRopeWarps);
  };
  const int32_t q_in_block = heads_in_block(args.heads, args.q_norm);
  const int32_t k_in_block = heads_in_block(args.kv_heads, args.k_norm);
  const int32_t q_blocks = blocks_for(args.heads, q_in_block);
  const int64_t q_bytes = size_of(args.q.type) * int64_t{kFour};
  const Rope rope{.args = args,
                  .q_heads_in_block = q_in_block,
                  .k_heads_in_block = k_in_block,
                  .q_blocks = q_blocks,
                  .vectors = args.dim % kFour == 0 && has_vectors(args.qkv) && args.q.row_stride % kFour == 0 &&
                             is_multiple(args.q.data, static_cast<size_t>(q_bytes))};
  const int64_t numbers = std::max(q_in_block, k_in_block) * int64_t{args.dim};
  const int64_t shared = (numbers + kFour - 1) / kFour * int64_t{sizeof(float4)};
  allow_shared(rope_kernel, shared, "rope");
  const dim3 grid(static_cast<uint32_t>(rows), static_cast<uint32_t>(q_blocks + blocks_for(args.kv_heads, k_in_block)));
  launch_after(rope_kernel, grid, kRopeThreads, static_cast<size_t>(shared), stream, "rope", rope);
}

}  // namespace quire::ops::cuda
