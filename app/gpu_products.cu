// Hopper's largest product, m64n256k16, again and again by two warpgroups of every multiprocessor, both factors in
// shared memory, sums in registers. The factors are random numbers: zeros would need less power, and the clock would be
// higher than any real product sees.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/cuda_call.h"
#include "gpu_products.h"

namespace quire::bench {
namespace {

constexpr int kM = 64, kN = 256, kK = 16;
constexpr int kSlices = 4;  // of the inner dimension, so that the factors are not always the same
constexpr int kRounds = 1 << 13;
constexpr int kWarpgroup = 128, kThreads = 2 * kWarpgroup;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kSums = kM * kN / kWarpgroup;  // of a thread

// Rows of kK bf16 as core matrices of 8 rows x 16 bytes, each in one stretch: the two of a row beside each other, then
// those of the next 8 rows.
__device__ uint64_t descriptor(const uint16_t* shared) {
  constexpr uint64_t kNextInRow = 128, kNextRows = 256, kUnit = 16;
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3ffff) / kUnit | kNextInRow / kUnit << 16 | kNextRows / kUnit << 32;
}

#define TEN(tens)                                                                                                   \
  "%" #tens "0, %" #tens "1, %" #tens "2, %" #tens "3, %" #tens "4, %" #tens "5, %" #tens "6, %" #tens "7, %" #tens \
  "8, %" #tens "9, "
#define EIGHT(i)                                                                                                \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])

__device__ void multiply(float (&sums)[kSums], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred adds; setp.ne.b32 adds, 1, 0;"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TEN() TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)
          TEN(8) TEN(9) TEN(10)
              TEN(11) "%120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, adds, 1, 1, 0, 0;}"
      : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56), EIGHT(64), EIGHT(72),
        EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)
      : "l"(a), "l"(b));
}

#undef TEN
#undef EIGHT

// A bf16 between 1 and 2 or -1 and -2.
__device__ uint16_t random_element(uint32_t index) {
  uint32_t hash = index * 2654435761u;
  hash ^= hash >> 15;
  return static_cast<uint16_t>(0x3f80 | (hash & 0x7f) | (hash & 0x80) << 8);
}

#endif

__global__ void __launch_bounds__(kThreads, 1) products_kernel(float* results) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(128) uint16_t a[kSlices][kM * kK];
  __shared__ alignas(128) uint16_t b[kSlices][kN * kK];
  for (uint32_t i = threadIdx.x; i < kSlices * kM * kK; i += kThreads) a[0][i] = random_element(i);
  for (uint32_t i = threadIdx.x; i < kSlices * kN * kK; i += kThreads) b[0][i] = random_element(~i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float sums[kSums] = {};
  for (int round = 0; round < kRounds; ++round) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) multiply(sums, descriptor(a[slice]), descriptor(b[slice]));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
  for (const float s : sums) sum += s;
  results[blockIdx.x * kThreads + threadIdx.x] = sum;
#endif
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
