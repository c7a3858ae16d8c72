// How the blocks of a cluster that has one sequence and kv head send each other results, and load what is read once.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/hopper.cuh"

namespace quire::attn::cuda {

// Waiting for the whole cluster in two halves: barriers that were begun before the first are seen after the second.
inline __device__ void cluster_arrive() {
#if QUIRE_HOPPER
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
inline __device__ void cluster_wait() {
#if QUIRE_HOPPER
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// Where in the block of that rank lies what lies here.
inline __device__ uint32_t address_in([[maybe_unused]] uint32_t rank, uint32_t here) {
  uint32_t there = here;
#if QUIRE_HOPPER
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#endif
  return there;
}
// Both addresses are another block's, whose barrier counts the bytes.
inline __device__ void send([[maybe_unused]] uint32_t to, [[maybe_unused]] float first, [[maybe_unused]] float second,
                            [[maybe_unused]] uint32_t barrier) {
#if QUIRE_HOPPER
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
#endif
}
inline __device__ void send([[maybe_unused]] uint32_t to, [[maybe_unused]] const float4& four,
                            [[maybe_unused]] uint32_t barrier) {
#if QUIRE_HOPPER
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w), "r"(barrier)
               : "memory");
#endif
}

// 16 bytes into registers, never from L1: what the kernel before did not write may be read while that one ends.
inline __device__ uint4 load_piece(const std::byte* from, uint64_t policy) {
  uint4 piece;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(from), "l"(policy)
               : "memory");
  return piece;
}

}  // namespace quire::attn::cuda
