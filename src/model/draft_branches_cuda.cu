#include <cuda_runtime.h>

#include "base/check.h"
#include "base/cuda_launch.cuh"
#include "model/draft_branches.h"
#include "model/draft_rows_cuda.cuh"

namespace quire::model::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;
using quire::cuda::launch_after;
using quire::cuda::stream_of;

// --- the path that was walked

constexpr int32_t kKeepThreads = 128;

struct KeepPath {
  KeepPathArgs args;
  int32_t arrays;  // of keys and values: blocks of a share, and one more for features
};

// A thread has the same piece of every slot. What is read lies behind all that it has written: node i of a path is row
// i or a later one.
template <class Piece>
__device__ void move_slots(const KeepPathArgs& a, const WalkedPath& path, const int32_t* nodes, RequestRow row,
                           std::byte* array, int64_t bytes) {
  const auto at = [&](int32_t node) {
    return reinterpret_cast<Piece*>(array + slot_at(a.table, row, path.position + node).value * bytes);
  };
  for (int32_t i = 1; i < path.nodes; ++i) {
    const int32_t from = __ldcg(nodes + i);
    if (from == i) continue;
    const Piece* const source = at(from);
    Piece* const target = at(i);
    for (int64_t piece = threadIdx.x; piece < bytes / int64_t{sizeof(Piece)}; piece += kKeepThreads)
      target[piece] = source[piece];
  }
}

__device__ void keep_features_of(const KeepPathArgs& a, const WalkedPath& path, const int32_t* nodes, RequestRow row) {
  const int32_t tokens = a.table.page_size.tokens();
  for (int32_t i = 0; i < path.nodes; ++i) {
    if ((path.position + i) % tokens != tokens - 1) continue;
    const int64_t page = slot_at(a.table, row, path.position + i).value / tokens;
    copy_row(a.features.row(path.first_row + __ldcg(nodes + i)), a.kept.row(a.first_page + page), a.kept.dim);
  }
}

// grid: arrays, and features; shares
__global__ void __launch_bounds__(kKeepThreads) keep_path_kernel(const __grid_constant__ KeepPath keep) {
  const KeepPathArgs& a = keep.args;
  griddep_wait();
  griddep_launch_dependents();
  const int32_t b = static_cast<int32_t>(blockIdx.y), array = static_cast<int32_t>(blockIdx.x);
  if (b >= __ldcg(a.live)) return;
  const int4 words = __ldcg(reinterpret_cast<const int4*>(a.paths + b));
  const WalkedPath path{.nodes = words.x, .position = words.y, .first_row = words.z, .unused = 0};
  if (path.nodes == 1) return;
  const int32_t* const nodes = a.path_rows + b * (1 + kMostTreeDrafts);
  const RequestRow row{__ldcg(&a.rows[b].value)};
  if (array == keep.arrays) return keep_features_of(a, path, nodes, row);
  const kv::LayerKv& kv = a.first_layer;
  const bool is_key = array < a.layers;
  const int64_t bytes = (is_key ? kv.key_stride : kv.value_stride) * size_of(kv.type);
  std::byte* const begin = (is_key ? kv.keys : kv.values) + (array % a.layers) * a.layer_bytes;
  if (bytes % int64_t{sizeof(uint4)} == 0)  // arrays begin at multiples of 64
    move_slots<uint4>(a, path, nodes, row, begin, bytes);
  else
    move_slots<std::byte>(a, path, nodes, row, begin, bytes);
}

// --- the next branches

constexpr int32_t kGrowThreads = kMostGpuTopk * kMostGpuTopk;

// A block has a request, and a thread one of the tokens that were said; then columns of the states.
__global__ void __launch_bounds__(kGrowThreads) grow_kernel(const __grid_constant__ GrowArgs a) {
  __shared__ float paths[kGrowThreads];
  __shared__ int32_t parents[kMostGpuTopk];
  griddep_wait();
  griddep_launch_dependents();
  const int64_t b = blockIdx.x;
  if (b >= __ldcg(a.live)) return;
  const int32_t i = static_cast<int32_t>(threadIdx.x), count = a.topk * a.topk;
  const int64_t first_said = b * count, first_branch = b * a.topk;
  if (i < count) paths[i] = __ldcg(a.paths + first_branch + i / a.topk) * __ldcg(a.hits + first_said + i);
  __syncthreads();
  if (i < count) {
    int32_t before = 0;  // that are likelier
    for (int32_t other = 0; other < count; ++other)
      before += paths[other] > paths[i] || (paths[other] == paths[i] && other < i);
    if (before < a.topk) {
      const int64_t at = first_branch + before;
      a.paths[at] = paths[i];
      a.tokens[at] = __ldcg(a.said + first_said + i);
      a.parents[at] = parents[before] = i / a.topk;
      say(a.followed + at, i, paths[i], __ldcg(a.number));
    }
  }
  __syncthreads();
  for (int64_t column = i; column < a.states.dim; column += kGrowThreads) {
    float values[kMostGpuTopk];  // all are read before one is written
#pragma unroll
    for (int32_t branch = 0; branch < kMostGpuTopk; ++branch)
      if (branch < a.topk) values[branch] = __ldcg(a.states.row(first_branch + parents[branch]) + column);
#pragma unroll
    for (int32_t branch = 0; branch < kMostGpuTopk; ++branch)
      if (branch < a.topk) a.states_out.row(first_branch + branch)[column] = values[branch];
  }
}

}  // namespace

void keep_path(const KeepPathArgs& args, Exec& exec) {
  const KeepPath keep{.args = args, .arrays = args.layers * (args.first_layer.latent() ? 1 : 2)};
  launch_after(keep_path_kernel, dim3(static_cast<uint32_t>(keep.arrays + 1), static_cast<uint32_t>(args.captured)),
               kKeepThreads, 0, stream_of(exec), "keep_path", keep);
}

void grow(const GrowArgs& args, Exec& exec) {
  check(args.topk <= kMostGpuTopk, "trees of ", args.topk, " branches, a GPU grows up to ", kMostGpuTopk);
  launch_after(grow_kernel, dim3(static_cast<uint32_t>(args.captured)), kGrowThreads, 0, stream_of(exec), "grow", args);
}

}  // namespace quire::model::cuda
