// Rotated queries in attention's type, rotated keys and values in their slots, in one pass over a row of qkv: what rope
// and store_rows do one after the other, to the bit. A warp takes a head.
#include <cuda_runtime.h>

#include "base/cuda_launch.cuh"
#include "kv/convert_bits.h"
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

__device__ void put(std::byte* to, Dtype type, int32_t at, float x, float scale) {
  switch (type) {
    case Dtype::f32:
      reinterpret_cast<float*>(to)[at] = x;
      return;
    case Dtype::bf16:
      reinterpret_cast<uint16_t*>(to)[at] = kv::bf16_bits(x);
      return;
    case Dtype::f16:
      reinterpret_cast<uint16_t*>(to)[at] = kv::f16_bits(x);
      return;
    case Dtype::f8e4m3:
      reinterpret_cast<uint8_t*>(to)[at] = kv::f8e4m3_bits(__fdiv_rn(x, scale));
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
  for (int32_t i = lane; i < head.half; i += 32) {
    const int32_t first = r.adjacent_pairs ? 2 * i : i, second = r.adjacent_pairs ? first + 1 : i + head.half;
    const float a = __ldcg(x + first), b = __ldcg(x + second);
    const float cosine = __ldcg(r.cos + row * head.half + i), sine = __ldcg(r.sin + row * head.half + i);
    put(head.to, head.type, first, __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)), head.scale);
    put(head.to, head.type, second, __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)), head.scale);
  }
  for (int32_t i = 2 * head.half + lane; i < head.dim; i += 32) put(head.to, head.type, i, __ldcg(x + i), head.scale);
}

}  // namespace

void rope_store(const QkvBlock& block, Exec& exec) {
  const AttentionSpec& spec = block.spec->attention;
  if (block.qkv.rows == 0) return;
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
