// Single instructions, for kernels that multiply in tensor cores: asynchronous copies into shared memory, fragments
// from there, products, exchanges between the lanes that have a row together, and ways to meet.
//
//   m16n8k16   lane t has of the result rows t / 4 and t / 4 + 8, columns t % 4 * 2 and t % 4 * 2 + 1
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/cuda_launch.cuh"

namespace quire::cuda {

inline __device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes; then the same, or zeros when there is nothing to read.
inline __device__ void cp_async(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline __device__ void cp_async(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// For copies of what is read once: it leaves L2 before anything else does.
inline __device__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// For copies of what is read again.
inline __device__ uint64_t evict_normal_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// Such a copy of what has a number: zeros when it is negative.
inline __device__ void cp_async_by_policy(uint32_t to, const void* from, int32_t number, uint64_t policy) {
  asm volatile(
      "{\n.reg .pred exists;\n.reg .b32 bytes;\nsetp.ge.s32 exists, %2, 0;\nselp.b32 bytes, 16, 0, exists;\n"
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, bytes, %3;\n}" ::"r"(to),
      "l"(from), "r"(number), "l"(policy));
}
inline __device__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int32_t kLeft>
__device__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// base + number * bytes, in one instruction.
inline __device__ const std::byte* address_of(const std::byte* base, uint32_t number, uint32_t bytes) {
  const std::byte* address;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(number), "r"(bytes), "l"(base));
  return address;
}

// Adds, and returns the sum before. What the caller knows of was written before, and what it learns from there on is
// what the earlier callers knew of.
inline __device__ int32_t count_arrivals(int32_t* count, int32_t more) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(more) : "memory");
  return before;
}

// Some of the block's warps wait for each other; `barrier` is not 0, which is the whole block's.
inline __device__ void named_barrier_sync(int32_t barrier, int32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

inline __device__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
inline __device__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <class T>
__device__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class To, class From>
__device__ To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

template <class T>
__device__ uint32_t pair(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return bits_as<uint32_t>(__floats2bfloat162_rn(low, high));
  else
    return bits_as<uint32_t>(__floats2half2_rn(low, high));
}

// The two e4m3 in the low half of `bits`, as f16: exact.
inline __device__ uint32_t widen(uint32_t bits) {
  return bits_as<uint32_t>(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bits), __NV_E4M3));
}

// 2^x; what is less than the least normal number is zero.
inline __device__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A value that is the same in all lanes, so that the compiler knows it, too: it keeps what is made of it in registers
// that the warp shares, and products under way need not end before a branch.
inline __device__ int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }

// Over the four lanes that have a row together.
inline __device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
inline __device__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// Word i of the quad's lane j goes to lane i as its word j.
inline __device__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int32_t distance = 1; distance < 4; distance *= 2) {
    const bool upper = threadIdx.x & distance;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (i & distance) continue;
      const uint32_t given = upper ? words[i] : words[i + distance];
      const uint32_t taken = __shfl_xor_sync(~0u, given, distance);
      (upper ? words[i] : words[i + distance]) = taken;
    }
  }
}

}  // namespace quire::cuda
