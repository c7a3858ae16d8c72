// Results of decode, four columns of a row at a time: how sums of warps, parts and splits are added up, and written.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

struct Quad {
  float4 out = {0, 0, 0, 0};  // relative to the row's maximum
  float row_max = -INFINITY;  // a power of two
  float sum = 0;
};

// In the order of their numbers. Without a jump, for which the compiler would have loads of values wait for the maxima;
// and without a product that it may or may not fuse, so that the bits are the same wherever this is.
template <int32_t kCount>
__device__ void fold_quads(Quad& total, const Quad (&quads)[kCount]) {
  float row_max = total.row_max;
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) row_max = fmaxf(row_max, quads[i].row_max);
  const float base = row_max == -INFINITY ? 0 : row_max, rescale = fast_exp2(total.row_max - base);
  float4 out = {__fmul_rn(total.out.x, rescale), __fmul_rn(total.out.y, rescale), __fmul_rn(total.out.z, rescale),
                __fmul_rn(total.out.w, rescale)};
  float sum = __fmul_rn(total.sum, rescale);
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) {
    const float share = fast_exp2(quads[i].row_max - base);
    const float4& more = quads[i].out;
    out = {__fmaf_rn(more.x, share, out.x), __fmaf_rn(more.y, share, out.y), __fmaf_rn(more.z, share, out.z),
           __fmaf_rn(more.w, share, out.w)};
    sum = __fmaf_rn(quads[i].sum, share, sum);
  }
  total = {out, row_max, sum};
}

inline __device__ void store_four(Dtype type, std::byte* array, int64_t index, const float4& x) {
  if (type == Dtype::bf16)
    *reinterpret_cast<uint2*>(array + index * 2) = {pair<__nv_bfloat16>(x.x, x.y), pair<__nv_bfloat16>(x.z, x.w)};
  else if (type == Dtype::f16)
    *reinterpret_cast<uint2*>(array + index * 2) = {pair<__half>(x.x, x.y), pair<__half>(x.z, x.w)};
  else
    *reinterpret_cast<float4*>(array + index * 4) = x;
}

template <int32_t kDim>
__device__ void write_quad(const AttendArgs& args, const Row& row, int32_t quad, const Quad& result) {
  const float row_max = __fmul_rn(result.row_max, kLn2);
  const float factor =
      factor_of(row_max, result.sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
  const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * kDim + quad * 4;
  const float4& out = result.out;
  store_four(args.out.type, args.out.data, at, {out.x * factor, out.y * factor, out.z * factor, out.w * factor});
  if (quad == 0) write_lse(args, row.row, row.head, row_max, result.sum);
}

}  // namespace quire::attn::cuda
