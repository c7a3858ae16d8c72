// Inside matmul on a GPU: one product as its kernels take it, and the way from finished sums to memory.
//
// matmul_cuda.cu chooses who computes a product; matmul_small_cuda.cu and matmul_ring_cuda.cu are the kernels,
// cublaslt.h the library for many rows.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "base/tensor_core.cuh"
#include "ops/matmul.h"
#include "ops/packed_rows.h"

namespace quire::ops::cuda {

struct Product {
  const uint16_t* weights;  // rows, packed_rows.h
  const uint16_t* in;       // [room, inputs]
  float* out;               // [room, out_stride]
  const float* bias;        // [outputs] or null
  const int32_t* live_rows;
  int64_t out_stride;
  int32_t outputs;  // of gate and up together
  int32_t inputs;
  int32_t room;
  float scale;
  Store store;
  PackedMatrix::Join join;

  int32_t weight_rows() const { return static_cast<int32_t>(row_count(join, outputs)); }
};

// Rows that are computed: a count past the room, which nobody should give, reads and writes nothing beyond it.
inline __device__ int32_t live_rows_of(const Product& p) {
  return min(*reinterpret_cast<const volatile int32_t*>(p.live_rows), p.room);
}

// x / (1 + exp(-x)) by exp(-|x|), which cannot overflow.
inline __device__ float silu(float x) {
  const float e = quire::cuda::fast_exp2(-fabsf(x * 1.44269504f));
  return (x < 0 ? x * e : x) / (1 + e);
}

inline __device__ void put(const Product& p, float* out, int32_t column, float sum) {
  if (p.bias) sum = __fadd_rn(sum, p.bias[column]);
  sum = __fmul_rn(sum, p.scale);
  out[column] = p.store == Store::add ? __fadd_rn(out[column], sum) : sum;
}

// The sums of weight rows `row` and row + 8 for one token; `row` is in the lower half of its group of 16.
inline __device__ void finish(const Product& p, int32_t row, int64_t token, float low, float high) {
  float* out = p.out + token * p.out_stride;
  if (p.join == PackedMatrix::Join::stack) {
    if (row < p.outputs) put(p, out, row, low);
    if (row + kHalfGroup < p.outputs) put(p, out, row + static_cast<int32_t>(kHalfGroup), high);
    return;
  }
  const int32_t half = p.outputs / 2, gate = static_cast<int32_t>(output_in_part(p.join, row)), up = half + gate;
  if (gate >= half) return;
  if (p.store != Store::silu_mul) {
    put(p, out, gate, low);
    put(p, out, up, high);
    return;
  }
  if (p.bias) {
    low = __fadd_rn(low, p.bias[gate]);
    high = __fadd_rn(high, p.bias[up]);
  }
  out[gate] = silu(low) * high;
}

// The kernels. All rows of the room, in the stream's order.
void multiply_small(const Product& product, cudaStream_t stream);
bool suits_ring(const Product& product);  // by the weights' shape and the device, not by rows
void multiply_ring(const Product& product, cudaStream_t stream);
// By cuBLASLt into memory of its own where `finish` has something to do, else straight to out.
void multiply_by_library(const Product& product, cudaStream_t stream);

}  // namespace quire::ops::cuda
