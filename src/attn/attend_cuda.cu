// The general kernel: every mode, variant, type and head dim, on any GPU of compute capability 8.0 or more whose blocks
// may have the shared memory for a tile of that dim.
//
// A block takes a tile of kRows (query row, head) pairs of one kv head and walks their keys alone, kKeys positions at a
// time, anchored at position 0. Products and sums are f32. No other row and no other block has a part in a row's
// result, so its bits depend on its query and its keys and nothing else, as on the CPU.
//
//   thread t   scores: key t % 32 against the four rows of its warp       values: columns t, t + 128, ... of all rows
//
// A tile is cut where the sequence ends, so a block may have several segments; they follow each other.
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"

namespace quire::attn::cuda {
namespace {

constexpr int32_t kThreads = 128, kWarp = 32;
constexpr int32_t kRows = kGeneralRows, kKeys = kGeneralKeys;
constexpr int32_t kRowsOfWarp = kRows / (kThreads / kWarp);
constexpr int32_t kMostColumns = 512 / kThreads;  // of values, for each thread
static_assert(kKeys == kWarp, "a lane has one key of a block");

struct Attend {
  AttendArgs args;
  int32_t group;        // query heads of a kv head
  int32_t positions;    // query rows of a tile
  int32_t chunks;       // tiles side by side where a group has more heads than a tile has rows
  int32_t slot_stride;  // floats of a key and its value in shared memory
};

// The last of the live sequences whose rows begin at or before `row`; empty ones before it have none.
__device__ int32_t sequence_of(const KeyView& keys, int32_t live, int32_t row) {
  return last_that(live, [&](int32_t b) { return keys.cu_q[b] <= row; });
}

// --- one segment: rows of one sequence

struct Tile {
  float* queries;  // [kRows, key dim]
  float* keys;     // [kKeys, slot stride]: the key, then the value unless it is the key's front
  float* probs;    // [kRows, kKeys]
  float* rescale;  // [kRows]
};

// Rows first .. last - 1 of the tile's positions, its heads first_head .. first_head + heads - 1.
struct Segment {
  int32_t first, last, first_head, heads;

  __device__ Row row(int32_t index) const {
    const int32_t row = first + index / heads;
    return {row < last ? row : -1, first_head + index % heads};
  }
};

__device__ void load_queries(const Attend& a, const Segment& segment, const Tile& tile) {
  const ConstHeadRows& q = a.args.q;
  for (int32_t i = threadIdx.x; i < kRows * q.dim; i += kThreads) {
    const Row row = segment.row(i / q.dim);
    const int64_t at = row.row * q.row_stride + int64_t{row.head} * q.dim + i % q.dim;
    tile.queries[i] = row.row < 0 ? 0.0f : load(q.type, q.data, at);
  }
}

// Keys that no row of the segment sees become zeros: what lies there is never looked at.
__device__ void load_keys(const Attend& a, const Sequence& sequence, int32_t kv_head, Span seen, int64_t first,
                          int32_t branch_row, const Tile& tile) {
  const kv::LayerKv& kv = a.args.kv;
  const int32_t value_dim = kv.latent() ? 0 : kv.value_dim;
  const int32_t lane = threadIdx.x % kWarp;
  for (int32_t key = threadIdx.x / kWarp; key < kKeys; key += kThreads / kWarp) {
    const int64_t position = first + key;
    const bool is_seen = position >= seen.first && position < seen.end;
    const int64_t slot = is_seen ? slot_of(a.args.keys, sequence, position, branch_row) : 0;
    float* to = tile.keys + key * a.slot_stride;
    const int64_t key_at = slot * kv.key_stride + int64_t{kv_head} * kv.key_dim;
    const int64_t value_at = slot * kv.value_stride + int64_t{kv_head} * kv.value_dim;
    for (int32_t d = lane; d < kv.key_dim; d += kWarp) to[d] = is_seen ? load(kv.type, kv.keys, key_at + d) : 0.0f;
    for (int32_t d = lane; d < value_dim; d += kWarp)
      to[kv.key_dim + d] = is_seen ? load(kv.type, kv.values, value_at + d) : 0.0f;
  }
}

__device__ float warp_max(float value) {
  for (int32_t step = kWarp / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__device__ float warp_sum(float value) {
  for (int32_t step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A row's softmax so far; every lane of its warp has the same.
struct SoftmaxState {
  float row_max = -INFINITY, sum = 0;
};

__device__ float score(const Attend& a, const Tile& tile, int32_t row, int32_t key) {
  const int32_t dim = a.args.kv.key_dim;
  const float* query = tile.queries + row * dim;
  const float* stored = tile.keys + key * a.slot_stride;
  float dot = 0;
  for (int32_t d = 0; d < dim; ++d) dot = __fmaf_rn(query[d], stored[d], dot);
  const float x = dot * (a.args.scale * a.args.kv.key_scale);
  return a.args.softcap > 0 ? a.args.softcap * tanhf(x / a.args.softcap) : x;
}

__device__ void online_softmax(const Attend& a, const Tile& tile, const Span* spans, int64_t first,
                               SoftmaxState* states) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t position = first + lane;
#pragma unroll
  for (int32_t i = 0; i < kRowsOfWarp; ++i) {
    const int32_t row = warp * kRowsOfWarp + i;
    const bool is_seen = position >= spans[row].first && position < spans[row].end;
    const float x = is_seen ? score(a, tile, row, lane) : -INFINITY;
    const float row_max = fmaxf(states[i].row_max, warp_max(x));
    const float base = row_max == -INFINITY ? 0.0f : row_max;
    const float prob = is_seen ? expf(x - base) : 0.0f;
    const float rescale = states[i].row_max == -INFINITY ? 0.0f : expf(states[i].row_max - base);
    states[i] = {row_max, states[i].sum * rescale + warp_sum(prob)};
    tile.probs[row * kKeys + lane] = prob;
    if (lane == 0) tile.rescale[row] = rescale;
  }
}

__device__ void fold_values(const Attend& a, const Tile& tile, float (&out)[kRows][kMostColumns]) {
  const kv::LayerKv& kv = a.args.kv;
  const float* values = tile.keys + (kv.latent() ? 0 : kv.key_dim);
#pragma unroll
  for (int32_t c = 0; c < kMostColumns; ++c) {
    const int32_t column = threadIdx.x + c * kThreads;
    if (column >= kv.value_dim) break;
#pragma unroll
    for (int32_t row = 0; row < kRows; ++row) out[row][c] *= tile.rescale[row];
    for (int32_t key = 0; key < kKeys; ++key) {
      const float value = values[key * a.slot_stride + column];
#pragma unroll
      for (int32_t row = 0; row < kRows; ++row)
        out[row][c] = __fmaf_rn(tile.probs[row * kKeys + key], value, out[row][c]);
    }
  }
}

__device__ void write_rows(const Attend& a, const Segment& segment, const Tile& tile, const SoftmaxState* states,
                           const float (&out)[kRows][kMostColumns]) {
  const AttendArgs& args = a.args;
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  __syncthreads();  // the probabilities are read no more; their first column now holds what a row is multiplied by
  for (int32_t i = 0; i < kRowsOfWarp; ++i) {
    const Row row = segment.row(warp * kRowsOfWarp + i);
    if (row.row < 0 || lane != 0) continue;
    const SoftmaxState& state = states[i];
    tile.rescale[warp * kRowsOfWarp + i] =
        factor_of(state.row_max, state.sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
    write_lse(args, row.row, row.head, state.row_max, state.sum);
  }
  __syncthreads();
#pragma unroll
  for (int32_t index = 0; index < kRows; ++index) {
    const Row row = segment.row(index);
    if (row.row < 0) continue;
#pragma unroll
    for (int32_t c = 0; c < kMostColumns; ++c) {
      const int32_t column = threadIdx.x + c * kThreads;
      if (column < args.out.dim)
        store(args.out.type, args.out.data, row.row * args.out.row_stride + int64_t{row.head} * args.out.dim + column,
              out[index][c] * tile.rescale[index]);
    }
  }
  __syncthreads();
}

// All positions that any of the rows sees.
__device__ Span union_of(const Span* spans) {
  Span all = spans[0];
  for (int32_t row = 1; row < kRows; ++row) {
    if (spans[row].first >= spans[row].end) continue;
    if (all.first >= all.end) all = spans[row];
    all = {min(all.first, spans[row].first), max(all.end, spans[row].end)};
  }
  return all;
}

__device__ void attend_segment(const Attend& a, const Sequence& sequence, const Segment& segment, int32_t kv_head,
                               const Tile& tile, Span* spans) {
  if (threadIdx.x < kRows) {
    const Row row = segment.row(threadIdx.x);
    spans[threadIdx.x] = row.row < 0 ? Span{0, 0} : span_of(a.args, sequence, row.row);
  }
  load_queries(a, segment, tile);
  __syncthreads();
  const Span all = union_of(spans);
  SoftmaxState states[kRowsOfWarp];
  float out[kRows][kMostColumns] = {};
  for (int64_t first = all.first / kKeys * kKeys; first < all.end; first += kKeys) {
    load_keys(a, sequence, kv_head, all, first, segment.first, tile);
    __syncthreads();
    online_softmax(a, tile, spans, first, states);
    __syncthreads();
    fold_values(a, tile, out);
    __syncthreads();
  }
  write_rows(a, segment, tile, states, out);
}

__device__ void write_empty_rows(const Attend& a, int32_t first, int32_t last, int32_t first_head, int32_t heads) {
  const AttendArgs& args = a.args;
  for (int32_t row = first; row < last; ++row)
    for (int32_t head = first_head; head < first_head + heads; ++head) {
      for (int32_t d = threadIdx.x; d < args.out.dim; d += kThreads)
        store(args.out.type, args.out.data, row * args.out.row_stride + int64_t{head} * args.out.dim + d, 0.0f);
      if (args.lse && threadIdx.x == 0) args.lse[head * args.q.rows + row] = -INFINITY;
    }
}

// grid: tiles of query rows, kv heads x chunks of their heads
__global__ void __launch_bounds__(kThreads) attend_kernel(const __grid_constant__ Attend a) {
  extern __shared__ float shared[];
  __shared__ Span spans[kRows];
  static_assert(sizeof(spans) <= kGeneralDeclared);
  const AttendArgs& args = a.args;
  const Tile tile{.queries = shared,
                  .keys = shared + kRows * args.q.dim,
                  .probs = shared + kRows * args.q.dim + kKeys * a.slot_stride,
                  .rescale = shared + kRows * args.q.dim + kKeys * a.slot_stride + kRows * kKeys};
  const int32_t kv_head = blockIdx.y / a.chunks, chunk = blockIdx.y % a.chunks;
  const int32_t first_in_group = chunk * kRows;
  const int32_t first_head = kv_head * a.group + first_in_group;
  const int32_t heads = min(a.group - first_in_group, kRows);
  int32_t row = blockIdx.x * a.positions;
  const int32_t last = min(row + a.positions, static_cast<int32_t>(args.q.rows));
  const int32_t live = *args.keys.live, live_rows = live ? args.keys.cu_q[live] : 0;
  int32_t b = row < live_rows ? sequence_of(args.keys, live, row) : 0;
  for (; row < min(last, live_rows); ++b) {
    const Sequence sequence = sequence_at(args.keys, b);
    if (sequence.last_row <= row) continue;
    // A branch is a row's own, so a row with one is a segment.
    const int32_t end = args.keys.branch_lengths ? row + 1 : min(last, sequence.last_row);
    attend_segment(a, sequence, {row, end, first_head, heads}, kv_head, tile, spans);
    row = end;
    if (end < sequence.last_row) --b;
  }
  write_empty_rows(a, row, last, first_head, heads);
}

Attend attend_of(const AttendArgs& args) {
  const int32_t group = args.q.heads / args.kv.kv_heads;
  return {.args = args,
          .group = group,
          .positions = group < kRows ? kRows / group : 1,
          .chunks = (group + kRows - 1) / kRows,
          .slot_stride = general_slot(args.kv.key_dim, args.kv.value_dim, args.kv.latent())};
}

void attend_generally(const AttendArgs& args, cudaStream_t stream) {
  const Attend a = attend_of(args);
  const size_t shared = general_shared_bytes(args.kv.key_dim, a.slot_stride);
  check_cuda(cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  const dim3 grid(static_cast<uint32_t>((args.q.rows + a.positions - 1) / a.positions),
                  static_cast<uint32_t>(args.kv.kv_heads * a.chunks));
  attend_kernel<<<grid, kThreads, shared, stream>>>(a);
  check_cuda(cudaGetLastError(), "attention was not launched");
}

int32_t attribute(cudaDeviceAttr which) {
  int32_t value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, 0), "an attribute of the device is not known");
  return value;
}

}  // namespace

// Asked once: every launch wants to know.
GpuDevice device() {
  static const GpuDevice known{
      .capability = attribute(cudaDevAttrComputeCapabilityMajor) * 10 + attribute(cudaDevAttrComputeCapabilityMinor),
      .processors = attribute(cudaDevAttrMultiProcessorCount),
      .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
      .reserved_shared = attribute(cudaDevAttrReservedSharedMemoryPerBlock)};
  return known;
}

void attend(const AttendArgs& args, Exec& exec) {
  check_args(args);
  const cudaStream_t stream = stream_of(exec);
  if (args.q.rows == 0) return;
  const GpuChoice choice = choose_gpu(args, device());
  switch (choice.kernel) {
    case GpuKernel::general:
      attend_generally(args, stream);
      break;
    case GpuKernel::decode:
      decode(args, choice, exec);
      break;
    case GpuKernel::decode_cluster:
      decode_cluster(args, choice, exec);
      break;
    case GpuKernel::decode_parts:
      decode_parts(args, choice, exec);
      break;
    case GpuKernel::decode_many:
      decode_many(args, choice, exec);
      break;
    case GpuKernel::latent:
      latent_attend(args, choice, exec);
      break;
    case GpuKernel::prefill:
      prefill(args, choice, exec);
      break;
  }
  count_launch(choice.kernel);
}

}  // namespace quire::attn::cuda
