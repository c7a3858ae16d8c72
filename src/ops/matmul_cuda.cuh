// Inside matmul on a GPU: one product as its kernels take it, and the way from finished sums to memory.
//
// matmul_cuda.cu chooses who computes a product; matmul_{small,tiles,stream,gates,split_k,ring}_cuda.cu are the
// kernels, cublaslt.h the library for many rows.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/tensor_core.cuh"
#include "ops/matmul.h"
#include "ops/packed_rows.h"

namespace quire::ops::cuda {

struct Product {
  const uint16_t* weights;  // rows, packed_rows.h
  const uint16_t* in;       // [room, in_stride]
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
  const float* squares = nullptr;  // [room, inputs / 16] whose factors (RowFactor) the sums come times; null: none
  NormedStream next = {};          // of Store::add
  bool has_heads = false;
  HeadTargets heads = {};

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
  Finish() = default;
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
    if (kJoin == PackedMatrix::Join::gate_and_up && p.store == Store::silu_mul) {
      low = __fadd_rn(low, low_bias_);
      high = __fadd_rn(high, high_bias_);
      if (has_low_) put(p, low_, silu(low) * high);
      return;
    }
    put_results(p, results(p, low, high));
  }
  // The same in two steps, of rows that are set or added to.
  __device__ float2 results(const Product& p, float low, float high) const {
    return {__fadd_rn(low_old_, __fmul_rn(__fadd_rn(low, low_bias_), p.scale)),
            __fadd_rn(high_old_, __fmul_rn(__fadd_rn(high, high_bias_), p.scale))};
  }
  __device__ void put_results(const Product& p, float2 x) const {
    if (has_low_) put(p, low_, x.x);
    if (has_high_) put(p, high_, x.y);
  }
  // What lies in a row of as many columns at the two outputs.
  __device__ float2 at_columns(const float* row) const {
    return {has_low_ ? row[low_] : 0, has_high_ ? row[high_] : 0};
  }

 private:
  __device__ void put(const Product& p, int32_t column, float x) const {
    if (p.bf16_out)
      reinterpret_cast<__nv_bfloat16*>(out_)[column] = __float2bfloat16_rn(x);
    else
      out_[column] = x;
  }

  bool has_low_ = false, has_high_ = false;
  float* out_ = nullptr;
  int32_t low_ = 0, high_ = 0;
  float low_bias_ = 0, high_bias_ = 0, low_old_ = 0, high_old_ = 0;
};

// 1 / rms of a token's row, from the squares of its groups: a lane adds up every 32nd, then the lanes by halves, so its
// bits depend on the row alone. By a whole warp. The first kAhead groups of a lane are on their way when it is made.
template <int32_t kAhead>
class RowFactor {
 public:
  __device__ RowFactor(const Product& p, int32_t token)
      : groups_(p.squares && token < p.room ? p.inputs / static_cast<int32_t>(kRowGroup) : 0),
        squares_(p.squares + static_cast<int64_t>(token) * groups_) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) ahead_[i] = group(threadIdx.x % 32 + i * 32);
  }
  // All lanes get it.
  __device__ float value(const Product& p) const {
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i) sum += ahead_[i];
#pragma unroll 1
    for (int32_t i = threadIdx.x % 32 + kAhead * 32; i < groups_; i += 32) sum += group(i);
#pragma unroll
    for (int32_t half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    return rsqrtf(__fdividef(sum, static_cast<float>(p.inputs)) + p.norm_eps);
  }

 private:
  __device__ float group(int32_t index) const { return index < groups_ ? __ldcg(squares_ + index) : 0; }
  int32_t groups_;
  const float* squares_;
  float ahead_[kAhead];
};

// Rows of bf16 as panels of 64 columns, [panels, rows, 64], in boxes of `panels` of `box` rows: a box costs TMA much
// the same whatever its size. What is past the last is zeros.
CUtensorMap panels_map(const uint16_t* data, int64_t rows, int64_t columns, int64_t stride, int32_t box,
                       int32_t panels);

// The same panels in boxes of one, of `unit` rows and the `unit` rows that lie `half` further on.
CUtensorMap pairs_map(const uint16_t* data, int64_t rows, int64_t columns, int64_t half, int32_t unit);

// Whole rows of bf16 by blocks of 64 columns, [rows, blocks, 64], in boxes of `blocks` of `box` rows, row by row.
CUtensorMap rows_map(const uint16_t* data, int64_t rows, int64_t columns, int32_t box, int32_t blocks);

// The kernels. All rows of the room, in the stream's order.
int32_t multiprocessors();
bool has_wgmma();
void multiply_small(const Product& product, cudaStream_t stream);
bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs);  // and the device; not by rows
void prepare_ring(cudaStream_t stream);                                     // takes memory; before the first product
void multiply_ring(const Product& product, cudaStream_t stream);
bool suits_tiles(int64_t inputs);                                  // and the device
void multiply_tiles(const Product& product, cudaStream_t stream);  // of what does not suit the ring
inline constexpr int32_t kFewSmallRows = 16, kMostSmallRows = 64, kMostStreamRows = 8;
inline constexpr int32_t kMostTilesRows = 256, kMostHundredRows = 128;  // of up to kMostTilesOutputs, and of more
inline constexpr int32_t kMostTilesOutputs = 4096;
inline constexpr int32_t kMostFusedRows = 128;  // of large matrices
inline constexpr int32_t kMostGatesRows = 256;  // with up to kMostFusedRows of them factors, too
bool suits_gates(int64_t weight_rows);          // and the device
void multiply_gates(const Product& product,
                    cudaStream_t stream);  // of what suits the ring, down to silu's results in bf16
bool suits_split_k(int64_t weight_rows, int64_t inputs);  // and the device
bool stores_heads_by_split_k(const HeadTargets& heads);
void multiply_split_k(const Product& product, cudaStream_t stream);  // of what suits the ring, to rows of f32 or heads
void multiply_stream(const Product& product, cudaStream_t stream);   // up to kMostStreamRows, of what suits the ring
// Of F8_E4M3, whose strips are in `weights`; product.weights is not read. own: not by cuBLASLt.
void multiply_fp8(const Product& product, const PackedMatrix& weights, bool own, cudaStream_t stream);
// By cuBLASLt into memory of its own where `finish` has something to do, else straight to out.
void multiply_by_library(const Product& product, cudaStream_t stream);

}  // namespace quire::ops::cuda
