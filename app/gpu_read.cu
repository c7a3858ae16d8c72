#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/cuda_call.h"
#include "gpu_limits.h"

namespace quire::bench {
namespace {

constexpr size_t kBytes = size_t{4} << 30;
constexpr int kThreads = 512, kLoads = 8;

// Every thread has kLoads loads of 16 bytes under way. The sum is written so that no load is idle work.
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* memory, int64_t count, uint32_t* sums) {
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i + (kLoads - 1) * stride < count;
       i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = __ldcs(memory + i + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) sum += loaded[k].x ^ loaded[k].y ^ loaded[k].z ^ loaded[k].w;
  }
  if (sum == 0x12345678) sums[blockIdx.x] = sum;
}

}  // namespace

double gpu_read_bytes(cuda::Stream& stream) {
  const Buffer memory(kBytes, Place::device), sums(1 << 16, Place::device);
  const auto handle = static_cast<cudaStream_t>(stream.handle());
  cuda::check_cuda(cudaMemsetAsync(memory.data(), 1, kBytes, handle), "memory is not set");
  constexpr int kBlocks = 132 * 4;
  const auto read = [&] {
    read_kernel<<<kBlocks, kThreads, 0, handle>>>(reinterpret_cast<const uint4*>(memory.data()), kBytes / sizeof(uint4),
                                                  reinterpret_cast<uint32_t*>(sums.data()));
  };
  double best = 1e9;
  for (int round = 0; round < 8; ++round) best = std::min(best, stream.seconds_of(read));
  return kBytes / best;
}

}  // namespace quire::bench
