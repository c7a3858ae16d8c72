// Rotated queries in attention's type, rotated keys and values in their slots, in one pass over a row of qkv: what rope
// and store_rows do one after the other, to the bit. A warp takes a head, a lane two numbers at a time.
#include <cuda_runtime.h>

#include "base/cuda_launch.cuh"
#include "kv/convert_bits.h"
#include "model/blocks_composed.h"
#include "model/rope_store.h"

namespace quire::model::cuda {
namespace {

constexpr int32_t kRopeStoreWarps = 4;

struct RopeStore {
  const float* qkv;  // [rows, qkv_stride]
  int64_t qkv_stride;
  const float* cos;  // [rows, half]
  const float* sin;
  int32_t heads, kv_heads, key_dim, value_dim, half;
  bool adjacent_pairs;
  HeadRows q;
  kv::LayerKv kv;
  const TokenSlot* slots;
  const int32_t* live_rows;
};

// Numbers at and at + 1, `at` even.
__device__ void put_two(std::byte* to, Dtype type, int32_t at, float2 x, float scale) {
  const auto both = [](uint32_t low, uint32_t high) { return low | high << 16; };
  switch (type) {
    case Dtype::f32:
      reinterpret_cast<float2*>(to)[at / 2] = x;
      return;
    case Dtype::bf16:
      reinterpret_cast<uint32_t*>(to)[at / 2] = both(kv::bf16_bits(x.x), kv::bf16_bits(x.y));
      return;
    case Dtype::f16:
      reinterpret_cast<uint32_t*>(to)[at / 2] = both(kv::f16_bits(x.x), kv::f16_bits(x.y));
      return;
    case Dtype::f8e4m3:
      reinterpret_cast<uchar2*>(to)[at / 2] = {kv::f8e4m3_bits(__fdiv_rn(x.x, scale)),
                                               kv::f8e4m3_bits(__fdiv_rn(x.y, scale))};
  }
}

// Where a head comes from and goes to.
struct Head {
  int64_t from;  // in the row of qkv
  int32_t dim, half;
  std::byte* to;
  Dtype type;
  float scale;
};

__device__ Head head_of(const RopeStore& r, int32_t head, int64_t row) {
  if (head < r.heads) return {int64_t{head} * r.key_dim, r.key_dim, r.half, r.q.at(row, head), r.q.type, 1};
  const int64_t slot = r.slots[row].value;
  const int32_t key = head - r.heads, value = key - r.kv_heads;
  const int64_t keys = int64_t{r.heads} * r.key_dim, values = keys + int64_t{r.kv_heads} * r.key_dim;
  if (value < 0)
    return {keys + int64_t{key} * r.key_dim,
            r.key_dim,
            r.half,
            r.kv.keys + (slot * r.kv.key_stride + int64_t{key} * r.key_dim) * size_of(r.kv.type),
            r.kv.type,
            r.kv.key_scale};
  return {values + int64_t{value} * r.value_dim,
          r.value_dim,
          0,
          r.kv.values + (slot * r.kv.value_stride + int64_t{value} * r.value_dim) * size_of(r.kv.type),
          r.kv.type,
          r.kv.value_scale};
}

__device__ float2 two_of(const float* x) { return __ldcg(reinterpret_cast<const float2*>(x)); }

// The rotated first and second number of a pair.
__device__ float2 rotated(float a, float b, float cosine, float sine) {
  return {__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)), __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine))};
}

// Two numbers of each half at a time, or a pair whose numbers are neighbours.
__device__ void rotate_head(const RopeStore& r, const Head& head, const float* x, int64_t row, int32_t lane) {
  const float *cosines = r.cos + row * head.half, *sines = r.sin + row * head.half;
  if (r.adjacent_pairs) {
    for (int32_t i = lane; i < head.half; i += 32) {
      const float2 pair = two_of(x + 2 * i);
      put_two(head.to, head.type, 2 * i, rotated(pair.x, pair.y, __ldcg(cosines + i), __ldcg(sines + i)), head.scale);
    }
    return;
  }
  for (int32_t i = 2 * lane; i < head.half; i += 64) {
    const float2 a = two_of(x + i), b = two_of(x + head.half + i);
    const float2 cosine = {__ldcg(cosines + i), __ldcg(cosines + i + 1)};
    const float2 sine = {__ldcg(sines + i), __ldcg(sines + i + 1)};
    const float2 first = rotated(a.x, b.x, cosine.x, sine.x), second = rotated(a.y, b.y, cosine.y, sine.y);
    put_two(head.to, head.type, i, {first.x, second.x}, head.scale);
    put_two(head.to, head.type, head.half + i, {first.y, second.y}, head.scale);
  }
}

// grid: rows, heads by warps
__global__ void __launch_bounds__(kRopeStoreWarps * 32) rope_store_kernel(const __grid_constant__ RopeStore r) {
  quire::cuda::griddep_launch_dependents();
  const int32_t lane = threadIdx.x % 32;
  const auto index = static_cast<int32_t>(blockIdx.y * kRopeStoreWarps + threadIdx.x / 32);
  const int64_t row = blockIdx.x;
  quire::cuda::griddep_wait();
  if (row >= *r.live_rows || index >= r.heads + 2 * r.kv_heads) return;
  const Head head = head_of(r, index, row);
  const float* x = r.qkv + row * r.qkv_stride + head.from;
  rotate_head(r, head, x, row, lane);
  for (int32_t i = 2 * (head.half + lane); i < head.dim; i += 64)
    put_two(head.to, head.type, i, two_of(x + i), head.scale);
}

}  // namespace

void rope_store(const QkvBlock& block, Exec& exec) {
  const AttentionSpec& spec = block.spec->attention;
  if (block.qkv.rows == 0) return;
  for (const int64_t count :
       {int64_t{block.rope.rotary / 2}, int64_t{spec.key_dim}, int64_t{spec.value_dim}, block.qkv.stride})
    if (count % 2 != 0) return composed::rotate_and_store(block, exec);
  const RopeStore r{.qkv = block.qkv.data,
                    .qkv_stride = block.qkv.stride,
                    .cos = block.cos,
                    .sin = block.sin,
                    .heads = spec.heads,
                    .kv_heads = spec.kv_heads,
                    .key_dim = spec.key_dim,
                    .value_dim = spec.value_dim,
                    .half = block.rope.rotary / 2,
                    .adjacent_pairs = block.rope.adjacent_pairs,
                    .q = block.q,
                    .kv = block.kv,
                    .slots = block.slots,
                    .live_rows = block.rows.live_rows};
  const int32_t heads = spec.heads + 2 * spec.kv_heads;
  const dim3 grid(static_cast<uint32_t>(block.qkv.rows),
                  static_cast<uint32_t>((heads + kRopeStoreWarps - 1) / kRopeStoreWarps));
  quire::cuda::launch_after(rope_store_kernel, grid, kRopeStoreWarps * 32, 0, quire::cuda::stream_of(exec),
                            "rope_store", r);
}

}  // namespace quire::model::cuda
