// Keys and values of 8 bits in tensor cores: e4m3 becomes f16, which is exact, and queries of bf16 become f16 with
// them, times a power of two that brings the greatest of some rows near the top of f16's range: all that is not less
// than that by 2^29 or more stays as it is. Scores are divided by it where they are scaled anyway.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

inline __device__ uint4 load_shared(uint32_t from) {
  uint4 r;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from));
  return r;
}
inline __device__ void store_shared(uint32_t to, uint4 r) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
}

// The eight e4m3 in two words as f16: exact.
inline __device__ uint4 widened(uint32_t first, uint32_t second) {
  uint4 r;
  asm("{\n"
      "  .reg .b16 a, b, c, d;\n"
      "  mov.b32 {a, b}, %4;\n"
      "  mov.b32 {c, d}, %5;\n"
      "  cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "  cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "  cvt.rn.f16x2.e4m3x2 %2, c;\n"
      "  cvt.rn.f16x2.e4m3x2 %3, d;\n"
      "}"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "r"(first), "r"(second));
  return r;
}

// The greatest magnitudes of pairs of bf16, as numbers that are compared as signed ones; what is not finite is less
// than all.
inline __device__ uint32_t greater(uint32_t a, uint32_t b) { return __vmaxs2(a, b); }
inline __device__ uint32_t magnitudes(const uint4& piece) {
  const auto of = [](uint32_t pair) { return (pair & 0x7fff7fff) + 0x00800080; };
  return greater(greater(of(piece.x), of(piece.y)), greater(of(piece.z), of(piece.w)));
}

// From bf16 to f16, for a warp's rows.
struct F16Scale {
  __nv_bfloat162 scales;
  float unscale;

  // greatest: magnitudes that this lane has.
  static __device__ F16Scale of(uint32_t greatest) {
    const uint32_t most = __reduce_max_sync(~0u, max(greatest >> 16, greatest & 0xffff)) >> 7;  // exponent + 1
    const uint32_t exponent = max(most, 16u) - 1;
    const uint32_t scale = (268 - exponent) << 7;  // as bf16: to 2^14 and more
    return {bits_as<__nv_bfloat162>(scale << 16 | scale), bits_as<float>((exponent - 14) << 23)};
  }
  __device__ uint4 converted(uint4 piece) const {
    for (uint32_t* word : {&piece.x, &piece.y, &piece.z, &piece.w}) {
      const float2 both = __bfloat1622float2(__hmul2(bits_as<__nv_bfloat162>(*word), scales));
      *word = pair<__half>(both.x, both.y);
    }
    return piece;
  }
};

}  // namespace quire::attn::cuda
