// Hopper's largest product, m64n256k16, again and again by two warpgroups of every multiprocessor, both factors in
// shared memory, sums in registers. The factors are random numbers: zeros would need less power, and the clock would be
// higher than any real product sees.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "gpu_limits.h"

namespace quire::bench {
namespace {

using namespace cuda::hopper;

constexpr int kM = 64, kN = 256, kK = 16;
constexpr int kSlices = kPanelColumns / kK;  // of the inner dimension, so that the factors are not always the same
constexpr int kRounds = 1 << 13;
constexpr int kThreads = 2 * kWarpgroup;
constexpr int kPanelBytes = kPanelColumns * kLineBytes;  // of either factor: 64 lines

// Two bf16 between 1 and 2 or -1 and -2.
__device__ uint32_t random_pair(uint32_t index) {
  uint32_t hash = index * 2654435761u;
  hash ^= hash >> 15;
  return 0x3f803f80 | (hash & 0x007f007f) | (hash & 0x00800080) << 8;
}

__global__ void __launch_bounds__(kThreads, 1) products_kernel(float* results) {
  __shared__ alignas(1024) uint32_t a[kPanelBytes / sizeof(uint32_t)];
  __shared__ alignas(1024) uint32_t b[kN / kPanelColumns * kPanelBytes / sizeof(uint32_t)];
  for (uint32_t i = threadIdx.x; i < std::size(a); i += kThreads) a[i] = random_pair(i);
  for (uint32_t i = threadIdx.x; i < std::size(b); i += kThreads) b[i] = random_pair(~i);
  fence_proxy_async();
  __syncthreads();
  const uint64_t rows = wgmma_descriptor(cuda::shared_address(a));
  const uint64_t columns = wgmma_descriptor(cuda::shared_address(b), kPanelBytes);
  float sums[kM * kN / kWarpgroup] = {};
  for (int round = 0; round < kRounds; ++round) {
    wgmma_fence();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
      wgmma_pv_shared<__nv_bfloat16>(sums, advance_descriptor(rows, slice * kK * 2),
                                     advance_descriptor(columns, slice * kK * kLineBytes), 1);
    wgmma_commit();
  }
  wgmma_wait<0>();
  float sum = 0;
  for (const float s : sums) sum += s;
  results[blockIdx.x * kThreads + threadIdx.x] = sum;
}

}  // namespace

std::optional<double> gpu_bf16_flops(cuda::Stream& stream) {
  cudaDeviceProp gpu{};
  cuda::check_cuda(cudaGetDeviceProperties(&gpu, 0), "no properties of the device");
  if (gpu.major != 9 || gpu.minor != 0) return std::nullopt;
  const int blocks = gpu.multiProcessorCount;
  const Buffer results(static_cast<size_t>(blocks) * kThreads * sizeof(float), Place::device);
  const auto multiply_all = [&] {
    products_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        reinterpret_cast<float*>(results.data()));
    cuda::check_cuda(cudaGetLastError(), "the products were not launched");
  };
  double best = 1e9;
  for (int run = 0; run < 8; ++run) best = std::min(best, stream.seconds_of(multiply_all));
  constexpr double kFlopsOfBlock = 2.0 * kM * kN * kK * kSlices * kRounds * (kThreads / kWarpgroup);
  return blocks * kFlopsOfBlock / best;
}

}  // namespace quire::bench
