// The merge on the GPU: a warp takes the head of a row. Each element is read and written by one thread, and the weights
// are known to all lanes before any is, so that the result may lie where an input lies.
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/merge.h"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kThreads = 128, kWarp = 32, kWarps = kThreads / kWarp;

struct Weights {
  float a, b;  // sum to 1; 0 where the part is empty, and both 0 where both are
  float lse;
};

__device__ Weights weigh(float lse_a, float lse_b) {
  const float a = isinf(lse_a) ? -INFINITY : lse_a;
  const float b = isinf(lse_b) ? -INFINITY : lse_b;
  const float top = fmaxf(a, b);
  if (top == -INFINITY) return {0, 0, -INFINITY};
  const float share_a = expf(a - top), share_b = expf(b - top);
  const float sum = share_a + share_b;
  return {share_a / sum, share_b / sum, top + logf(sum)};
}

template <class Byte>
__device__ int64_t start_of(const BasicHeadRows<Byte>& part, int64_t row, int32_t head) {
  return row * part.row_stride + int64_t{head} * part.dim;
}

// An empty part may hold anything, so it is not read.
__device__ float weighted(const ConstHeadRows& part, int64_t index, float weight) {
  return weight == 0 ? 0.0f : weight * load(part.type, part.data, index);
}

// grid: warps for all (row, head)
__global__ void __launch_bounds__(kThreads) merge_kernel(const __grid_constant__ MergeArgs args) {
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t row = index / args.out.heads;
  const auto head = static_cast<int32_t>(index % args.out.heads);
  if (row >= args.out.rows) return;
  const int64_t lse_at = head * args.out.rows + row;
  const Weights weights = weigh(args.lse_a[lse_at], args.lse_b[lse_at]);
  const int64_t a = start_of(args.a, row, head), b = start_of(args.b, row, head), out = start_of(args.out, row, head);
  for (int32_t d = threadIdx.x % kWarp; d < args.out.dim; d += kWarp)
    store(args.out.type, args.out.data, out + d,
          weighted(args.a, a + d, weights.a) + weighted(args.b, b + d, weights.b));
  __syncwarp();  // all lanes have read the inputs' log-sum-exp
  if (args.lse && threadIdx.x % kWarp == 0) args.lse[lse_at] = weights.lse;
}

}  // namespace

void merge(const MergeArgs& args, Exec& exec) {
  check_args(args);
  const cudaStream_t stream = stream_of(exec);
  const int64_t pairs = args.out.rows * args.out.heads;
  if (pairs == 0) return;
  merge_kernel<<<static_cast<uint32_t>((pairs + kWarps - 1) / kWarps), kThreads, 0, stream>>>(args);
  check_cuda(cudaGetLastError(), "the merge was not launched");
}

}  // namespace quire::attn::cuda
