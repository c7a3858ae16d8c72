// What decode_cluster and decode_parts, whose clusters of blocks have one sequence and kv head each, share: their
// parameters and launch, how blocks send each other results, and how they load what is read once.
#pragma once
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "base/hopper.cuh"

namespace quire::attn::cuda {

struct ClusterDecode {
  AttendArgs args;
  int32_t group;
  int32_t row_tiles;               // that a sequence may have, of (query, head) pairs; each has a cluster
  int32_t cluster_shift;           // log2 of its blocks
  int32_t key_bytes, value_bytes;  // from one slot to the next
  bool keys_are_old;               // but for those of this step's queries: the kernel before wrote none of them

  __device__ int32_t blocks() const { return 1 << cluster_shift; }
};

inline ClusterDecode cluster_decode(const AttendArgs& args, const GpuChoice& choice) {
  return {.args = args,
          .group = args.q.heads / args.kv.kv_heads,
          .row_tiles = choice.row_tiles,
          .cluster_shift = std::countr_zero(static_cast<uint32_t>(choice.cluster)),
          .key_bytes = static_cast<int32_t>(args.kv.key_stride * size_of(args.kv.type)),
          .value_bytes = static_cast<int32_t>(args.kv.value_stride * size_of(args.kv.type)),
          .keys_are_old = args.keys_are_settled && args.keys.set != Set::encoder};
}

inline void launch_clusters(void (*kernel)(ClusterDecode), const ClusterDecode& d, const GpuChoice& choice,
                            uint32_t threads, size_t shared, cudaStream_t stream) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "attention needs room for two blocks");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             "attention needs clusters of 16 blocks");
  launch_after(kernel, dim3(static_cast<uint32_t>(choice.blocks)), threads, shared, stream, "attention", d,
               choice.cluster);
}

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
