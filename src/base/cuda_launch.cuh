// Kernels that follow each other closely (programmatic dependent launch): a kernel's blocks take their places while the
// kernel before it in the stream is still at its end. What does not depend on that kernel (weights, settled metadata)
// may be read at once; for all else a block waits.
//
//   __global__ void kernel(const __grid_constant__ Args a) {
//     ... what nobody on the stream writes
//     griddep_wait();                 every kernel, also one that needs nothing: the end of a kernel is known to the
//     griddep_launch_dependents();    one after the next only through this wait
//     ... the rest
//   }
//   launch_after(kernel, grid, block, shared, stream, "rms_norm", a);
//
// What the kernel before wrote is never read through the read-only cache (no __ldg, no const __restrict__): the
// compiler may move such a load before the wait. Code for devices older than Hopper has no instruction to wait and is
// launched in the plain way.
//
// A build with QUIRE_SLOWED_KERNELS can make kernels late (slowed_kernels.h).
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/cuda_call.h"
#ifdef QUIRE_SLOWED_KERNELS
#include "base/slowed_kernels.h"
#endif

namespace quire::cuda {

#ifdef QUIRE_SLOWED_KERNELS
// A late kernel is told so by the bytes of shared memory that it is launched with: they are no multiple of 16.
constexpr uint32_t kLateBytes = 8, kRoundBytes = 16;

inline __device__ void stand_still_if_late() {
#if __CUDA_ARCH__ >= 900
  constexpr uint64_t kNanoseconds = 50'000;
  uint32_t shared;
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(shared));
  if (shared % kRoundBytes != kLateBytes) return;
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  while (now - begin < kNanoseconds);
#endif
}
inline size_t shared_of_slowed(const void* kernel, size_t shared) {
  shared = (shared + kRoundBytes - 1) / kRoundBytes * kRoundBytes + (slowed_kernels.next_is_late() ? kLateBytes : 0);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "a slowed kernel with ", shared, " bytes of shared memory");
  return shared;
}
#else
inline __device__ void stand_still_if_late() {}
#endif

inline __device__ void griddep_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  stand_still_if_late();
#endif
}
inline __device__ void griddep_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  stand_still_if_late();
#endif
}

// May the kernel start early? Only if the code that the device runs can wait.
inline bool can_wait(const void* kernel, const char* name) {
  constexpr int32_t kLeastGriddepVersion = 90;
  cudaFuncAttributes code;
  check_cuda(cudaFuncGetAttributes(&code, kernel), "the kernel of ", name, " is not known");
  return code.ptxVersion >= kLeastGriddepVersion;
}

// cluster: blocks of a cluster, neighbours in x; 0: none.
template <class Args>
void launch_after(void (*kernel)(Args), dim3 grid, int32_t threads, size_t shared, cudaStream_t stream,
                  const char* name, const Args& args, int32_t cluster = 0) {
  // Asked once, not at every launch: all kernels are compiled for the same devices.
  static const bool starts_early = can_wait(reinterpret_cast<const void*>(kernel), name);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = starts_early;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = static_cast<uint32_t>(cluster), .y = 1, .z = 1};
#ifdef QUIRE_SLOWED_KERNELS
  if (slowed_kernels.late == SlowedKernels::kNone) attributes[0].val.programmaticStreamSerializationAllowed = 0;
  shared = shared_of_slowed(reinterpret_cast<const void*>(kernel), shared);
#endif
  const cudaLaunchConfig_t launch = {.gridDim = grid,
                                     .blockDim = dim3(static_cast<uint32_t>(threads)),
                                     .dynamicSmemBytes = shared,
                                     .stream = stream,
                                     .attrs = attributes,
                                     .numAttrs = cluster > 0 ? 2u : 1u};
  check_cuda(cudaLaunchKernelEx(&launch, kernel, args), name, " was not launched");
}

}  // namespace quire::cuda
