// Four numbers of a row of activations into each of its forms, by a thread; quantised blocks of 32 by eight threads.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "ops/activations.h"
#include "ops/by_row_cuda.cuh"

namespace quire::ops::cuda {

// May the floats of the forms be written in fours?
inline bool has_vectors(const ActivationRows& rows) {
  return rows.dim % kFour == 0 && (!rows.forms.f32 || is_multiple(rows.f32, sizeof(float4))) &&
         (!rows.forms.bf16 || is_multiple(rows.bf16, sizeof(uint2)));
}

__device__ inline uint16_t bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

__device__ inline void store_bf16(uint16_t* row, int64_t at, int64_t dim, bool vectors, float4 x) {
  const uint16_t bits[kFour] = {bf16_bits(x.x), bf16_bits(x.y), bf16_bits(x.z), bf16_bits(x.w)};
  if (vectors) {
    *reinterpret_cast<uint2*>(row + at) = {bits[0] | uint32_t{bits[1]} << 16, bits[2] | uint32_t{bits[3]} << 16};
    return;
  }
#pragma unroll
  for (int32_t k = 0; k < kFour; ++k)
    if (at + k < dim) row[at + k] = bits[k];
}

struct BlockScale {
  float scale;
  float inverse;  // 0: every q is 0, whatever x is
};

// Of the block whose numbers eight threads hold.
__device__ inline BlockScale scale_of_block(float4 x) {
  constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u;
  const auto magnitude = [](float number) { return __float_as_uint(number) & kMagnitude; };
  uint32_t largest = max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w)));
#pragma unroll
  for (int32_t other = 1; other < 8; other *= 2) largest = max(largest, __shfl_xor_sync(kAllLanes, largest, other));
  if (largest >= kInfinity) return {__uint_as_float(0x7fc00000u), 0};
  const float number = __uint_as_float(largest);
  if (number < 0x1p-119f) return {0, 0};
  return {__fdiv_rn(number, 127.0f), __fdiv_rn(127.0f, number)};
}

// All lanes of a warp come here; those beyond the row, whose `exists` is false, write nothing. Returns what the 8 bits
// leave over.
__device__ inline float4 quantise_block(float4 x, int64_t at, bool exists, int8_t* q_row, float* scales,
                                        int32_t* sums_row) {
  const BlockScale block = scale_of_block(x);
  const auto rounded = [&](float number) {
    return block.inverse == 0 ? 0 : __float2int_rn(__fmul_rn(number, block.inverse));
  };
  const int32_t q[kFour] = {rounded(x.x), rounded(x.y), rounded(x.z), rounded(x.w)};
  int32_t sum = q[0] + q[1] + q[2] + q[3];
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  if (exists) {
    *reinterpret_cast<char4*>(q_row + at) = {static_cast<signed char>(q[0]), static_cast<signed char>(q[1]),
                                             static_cast<signed char>(q[2]), static_cast<signed char>(q[3])};
    if (at % (kActivationBlock / 2) == 0) sums_row[at / (kActivationBlock / 2)] = sum;
    if (at % kActivationBlock == 0) scales[at / kActivationBlock] = block.scale;
  }
  const auto rest = [&](float number, int32_t quant) {
    return __fsub_rn(number, __fmul_rn(block.scale, static_cast<float>(quant)));
  };
  return {rest(x.x, q[0]), rest(x.y, q[1]), rest(x.z, q[2]), rest(x.w, q[3])};
}

// Numbers [at, at + 4) of a row in all forms. All lanes of a warp come here, those behind the row's end with zeros.
__device__ inline void fill_four(const ActivationRows& out, int64_t row, int64_t at, bool vectors, float4 x) {
  const bool exists = at < out.dim;
  if (exists && out.forms.f32) store_four(out.f32 + row * out.dim, at, out.dim, vectors, x);
  if (exists && out.forms.bf16) store_bf16(out.bf16 + row * out.dim, at, out.dim, vectors, x);
  if (!(out.forms.q8 || out.forms.q8x2)) return;
  const int64_t blocks = out.dim / kActivationBlock;
  const auto quantised = [&](int64_t quantised_row, float4 numbers) {
    return quantise_block(numbers, at, exists, out.q + quantised_row * out.q_stride, out.scale + quantised_row * blocks,
                          out.sums + quantised_row * blocks * 2);
  };
  if (out.forms.q8) {
    quantised(row, x);
  } else {
    const float4 rest = quantised(2 * row, x);
    quantised(2 * row + 1, rest);
  }
}

}  // namespace quire::ops::cuda
