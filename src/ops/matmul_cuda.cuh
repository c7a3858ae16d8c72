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
  const uint16_t* in;       // [room, in_stride], or:
  const float* norm_in;     // [room, inputs] f32 rows that are normed on the way; null: none
  const float* norm;        // [inputs] their weight
  float* out;               // [room, out_stride]
  const float* bias;        // [outputs] or null
  const int32_t* live_rows;
  int64_t in_stride, out_stride;
  int32_t outputs;  // of gate and up together
  int32_t inputs;
  int32_t room;
  float scale, norm_eps;
  Store store;
  PackedMatrix::Join join;
  bool bf16_out;

  int32_t weight_rows() const { return static_cast<int32_t>(row_count(join, outputs)); }
};

// Rows that are computed: a count past the room, which nobody should give, reads and writes nothing beyond it.
inline __device__ int32_t live_rows_of(const Product& p) {
  return min(*reinterpret_cast<const volatile int32_t*>(p.live_rows), p.room);
}

// x / (1 + exp(-x)) by exp(-|x|), which cannot overflow.
inline __device__ float silu(float x) {
  const float e = quire::cuda::fast_exp2(-fabsf(x * 1.44269504f));
  return __fdividef(x < 0 ? x * e : x, 1 + e);
}

// The way of two sums to memory: of weight rows `row` and row + 8 for one token; `row` is in the lower half of its
// group of 16. What it adds is loaded when it is made, as early as the caller likes; a token past the room has nothing.
template <PackedMatrix::Join kJoin>
class Finish {
 public:
  __device__ Finish(const Product& p, int32_t row, int32_t token) {
    constexpr bool kPairs = kJoin == PackedMatrix::Join::gate_and_up;
    const int32_t half = p.outputs / 2, low = static_cast<int32_t>(output_in_part(kJoin, row));
    const int32_t high = kPairs ? half + low : low + static_cast<int32_t>(kHalfGroup);
    has_low_ = token < p.room && low < (kPairs ? half : p.outputs);
    has_high_ = kPairs ? has_low_ : token < p.room && high < p.outputs;
    out_ = p.out + static_cast<int64_t>(token) * p.out_stride;
    low_ = low;
    high_ = high;
    if (p.bias) {
      if (has_low_) low_bias_ = p.bias[low];
      if (has_high_) high_bias_ = p.bias[high];
    }
    if (p.store == Store::add) {
      if (has_low_) low_old_ = __ldcg(out_ + low);
      if (has_high_) high_old_ = __ldcg(out_ + high);
    }
  }

  // What it is given are the sums; the token is alive.
  __device__ void store(const Product& p, float low, float high) const {
    low = __fadd_rn(low, low_bias_);
    high = __fadd_rn(high, high_bias_);
    if (kJoin == PackedMatrix::Join::gate_and_up && p.store == Store::silu_mul) {
      if (has_low_) put(p, low_, silu(low) * high);
      return;
    }
    if (has_low_) put(p, low_, __fadd_rn(low_old_, __fmul_rn(low, p.scale)));
    if (has_high_) put(p, high_, __fadd_rn(high_old_, __fmul_rn(high, p.scale)));
  }

 private:
  __device__ void put(const Product& p, int32_t column, float x) const {
    if (p.bf16_out)
      reinterpret_cast<__nv_bfloat16*>(out_)[column] = __float2bfloat16_rn(x);
    else
      out_[column] = x;
  }

  bool has_low_, has_high_;
  float* out_;
  int32_t low_, high_;
  float low_bias_ = 0, high_bias_ = 0, low_old_ = 0, high_old_ = 0;
};

constexpr int32_t kMostNormedRows = 16;

// The kernels. All rows of the room, in the stream's order.
void multiply_small(const Product& product, cudaStream_t stream);
bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs);  // and the device; not by rows
void multiply_ring(const Product& product, cudaStream_t stream);
// Of F8_E4M3, whose strips are in `weights`; product.weights is not read.
void multiply_fp8(const Product& product, const PackedMatrix& weights, cudaStream_t stream);
// By cuBLASLt into memory of its own where `finish` has something to do, else straight to out.
void multiply_by_library(const Product& product, cudaStream_t stream);

}  // namespace quire::ops::cuda
