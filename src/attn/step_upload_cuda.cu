#include <cuda_runtime.h>

#include <algorithm>

#include "attn/step_upload_cuda.h"
#include "base/cuda_launch.cuh"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kFetchThreads = 256, kMostFetchBlocks = 8;  // of an array
constexpr uint32_t kPiece = 16;

// grid: arrays, blocks of each
__global__ void __launch_bounds__(kFetchThreads) fetch_kernel(const __grid_constant__ FetchArgs a) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const FetchArgs::Array array = a.arrays[blockIdx.x];
  const auto* from = reinterpret_cast<const uint4*>(a.from + array.offset);
  auto* to = reinterpret_cast<uint4*>(a.to + array.offset);
  const uint32_t pieces = (array.bytes + kPiece - 1) / kPiece;
  for (uint32_t i = blockIdx.y * kFetchThreads + threadIdx.x; i < pieces; i += gridDim.y * kFetchThreads)
    to[i] = __ldcv(from + i);
}

}  // namespace

void fetch(const FetchArgs& args, Exec& exec) {
  uint32_t most = 0;
  for (int32_t i = 0; i < args.count; ++i) most = std::max(most, args.arrays[i].bytes);
  const uint32_t blocks = std::clamp<uint32_t>(most / (kPiece * kFetchThreads), 1, kMostFetchBlocks);
  quire::cuda::launch_after(fetch_kernel, dim3(static_cast<uint32_t>(args.count), blocks), kFetchThreads, 0,
                            quire::cuda::stream_of(exec), "the upload of a step's inputs", args);
}

}  // namespace quire::attn::cuda
