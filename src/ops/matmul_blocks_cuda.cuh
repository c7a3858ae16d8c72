// Inside matmul_blocks_cuda.cu and matmul_blocks_row_cuda.cu: one product of quantised weights as kernels take it, and
// the way from finished sums to memory with the CPU's bits.
#pragma once
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_cuda.cuh"
#include "ops/packed_blocks_cuda.cuh"

namespace quire::ops::cuda {

constexpr int32_t kMostParts = 4;

// An integer sum arrives as a float by way of its bits: the accumulators of the tensor cores begin at those of
// 1.5 * 2^23.
constexpr int32_t kMagic = 0x4b400000;
constexpr float kMagicNumber = 12582912.0f;

struct BlockPart {
  const std::byte* panels;
  int64_t panel_bytes;
  int32_t groups, group_bytes;  // of a tile
  int32_t outputs, first_output;
  BlockType type;
};

struct BlockProduct {
  BlockPart parts[kMostParts];
  int32_t panels[kMostParts];  // of each part; of a gate and its up, which share theirs, the first alone has any
  bool joined;                 // they are a gate and its up
  bool pairs;                  // that are multiplied
  int32_t team;                // warps of a unit
  const int8_t* q;             // [rows << halves]
  const float* scale;
  const int32_t* sums;
  int64_t q_stride;
  int32_t blocks;  // of 32 inputs
  float* out;
  const float* bias;
  int64_t out_stride;
  float out_scale;
  Store store;
  int32_t halves;  // 1: a row of the product is two of the activations (q8x2), which are added
  const int32_t* live_rows;
  int32_t room;
  int32_t slot_bytes;  // of a ring: half a panel's group
  // Of one row that is quantised here, and normed before that where there are weights of a norm.
  const float* row;  // [32 blocks] in place of q, scale and sums; null: they are there
  const float* norm;
  float norm_eps;

  __host__ __device__ int32_t all_panels() const { return panels[0] + panels[1] + panels[2] + panels[3]; }
  __host__ __device__ int32_t units() const { return 2 * all_panels(); }  // of 16 outputs
};
static_assert(kMostParts == 4);

// The CPU's bits (cpu::silu): fma(min(0, x), e, max(0, x)) / (1 + e) with e = 2^-|x log2(e)| by a polynomial.
inline __device__ float exact_silu(float x) {
  const float exponent = __fmul_rn(x, 1.44269504f);
  const float y = -exponent < exponent ? -exponent : exponent;
  const float whole = rintf(y), f = __fsub_rn(y, whole);
  float e = 0.0013264727f;
  e = __fmaf_rn(e, f, 0.009671513f);
  e = __fmaf_rn(e, f, 0.055507336f);
  e = __fmaf_rn(e, f, 0.24022242f);
  e = __fmaf_rn(e, f, 0.693147f);
  e = __fmaf_rn(e, f, 1.0f);
  e = y < -126.0f ? 0.0f : __fmul_rn(e, __int_as_float((static_cast<int32_t>(whole) + 127) << 23));
  const float least = 0.0f < x ? 0.0f : x, most = 0.0f > x ? 0.0f : x;  // x where it is NaN
  return __fdiv_rn(__fmaf_rn(least, e, most), __fadd_rn(1.0f, e));
}

// With room for one row, which has no halves, on a Hopper.
bool suits_blocks_row(const BlockProduct& p);
void multiply_blocks_row(const BlockProduct& p, cudaStream_t stream);

}  // namespace quire::ops::cuda
