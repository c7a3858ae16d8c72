#include <cuda_runtime.h>

#include <algorithm>

#include "attn/step_fetch_cuda.cuh"
#include "attn/step_upload_cuda.h"
#include "base/cuda_launch.cuh"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kFetchThreads = 256, kMostFetchBlocks = 8;  // of an array
constexpr uint32_t kPiece = 16;

__device__ uint4 known_tokens(const StepSource& source, const uint4& ids) {
  const auto known = [&](uint32_t id) { return static_cast<uint32_t>(known_token(source, static_cast<int32_t>(id))); };
  return {known(ids.x), known(ids.y), known(ids.z), known(ids.w)};
}

// grid: arrays, the numbers before the first; blocks of each
__global__ void __launch_bounds__(kFetchThreads) fetch_kernel(const __grid_constant__ FetchArgs a) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const StepSource& source = a.in.source;
  const StepTurn turn = turn_of(source);
  const PinnedCopy copy(source, turn);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    say_what_was_fetched(source, turn);
    begin_time(source);
  }
  const FetchArgs::Array array = a.arrays[blockIdx.x];
  auto* const to = reinterpret_cast<uint4*>(source.device + array.offset);
  const auto* const from = reinterpret_cast<const uint4*>(copy.place(to));
  const bool has_tokens = blockIdx.x == a.tokens;
  const uint32_t pieces = (array.bytes + kPiece - 1) / kPiece;
  for (uint32_t i = blockIdx.y * kFetchThreads + threadIdx.x; i < pieces; i += gridDim.y * kFetchThreads) {
    const uint4 piece = __ldcv(from + i);
    to[i] = has_tokens ? known_tokens(source, piece) : piece;
  }
}

}  // namespace

void fetch(const FetchArgs& args, Exec& exec) {
  uint32_t most = 0;
  for (int32_t i = 0; i < args.count; ++i) most = std::max(most, args.arrays[i].bytes);
  const uint32_t blocks = std::clamp<uint32_t>(most / (kPiece * kFetchThreads), 1, kMostFetchBlocks);
  quire::cuda::launch_after(fetch_kernel, dim3(static_cast<uint32_t>(args.count), blocks), kFetchThreads, 0,
                            quire::cuda::stream_of(exec), "a step's inputs", args);
}

}  // namespace quire::attn::cuda
