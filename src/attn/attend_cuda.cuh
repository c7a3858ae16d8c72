// What the attention kernels of the GPU share: elements of any type, and which keys a row sees, as the reference says
// it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "attn/attention.h"
#include "attn/gpu_choice.h"
#include "attn/stream_k.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"

namespace quire::attn::cuda {

using namespace quire::cuda;  // single instructions and launches: one name each, as if they were the language's

constexpr int32_t kWarp = 32;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

inline __device__ float load(Dtype type, const std::byte* array, int64_t index) {
  switch (type) {
    case Dtype::bf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(array)[index]);
    case Dtype::f16:
      return __half2float(reinterpret_cast<const __half*>(array)[index]);
    case Dtype::f8e4m3:
      return static_cast<float>(reinterpret_cast<const __nv_fp8_e4m3*>(array)[index]);
    default:
      return reinterpret_cast<const float*>(array)[index];
  }
}

inline __device__ void store(Dtype type, std::byte* array, int64_t index, float value) {
  switch (type) {
    case Dtype::bf16:
      reinterpret_cast<__nv_bfloat16*>(array)[index] = __float2bfloat16_rn(value);
      break;
    case Dtype::f16:
      reinterpret_cast<__half*>(array)[index] = __float2half_rn(value);
      break;
    default:
      reinterpret_cast<float*>(array)[index] = value;
  }
}

// Slot of a sequence's key in its page, or in its pages, of 2^shift tokens each.
inline __device__ int32_t slot_in_page(int32_t page, int32_t shift, int32_t key) {
  return (page << shift) + (key & ((1 << shift) - 1));
}
inline __device__ int32_t slot_in_pages(const PageId* pages, int32_t shift, int32_t key) {
  return slot_in_page(pages[key >> shift].value, shift, key);
}

// Of the step's metadata. They may be read while the kernel before still runs, which is too early to trust L1: it may
// have what an earlier step wrote.
template <class T>
__device__ T read_early(const T* of_step) {
  return __ldcg(of_step);
}

struct Sequence {
  const PageId* pages;
  int64_t start, end;           // positions of the keys in pages
  int32_t first_row, last_row;  // its query rows: first_row .. last_row - 1

  __device__ int32_t length() const { return static_cast<int32_t>(end - start); }
};

// Where the pages of live sequence b begin: entry `first_page` of row `row` of the tables.
struct TablePlace {
  int32_t row, first_page;
  __device__ const PageId* in(const KeyView& keys) const { return keys.pages + row * keys.stride + first_page; }
};
inline __device__ TablePlace table_place(const KeyView& keys, int32_t b) {
  return {.row = keys.rows ? read_early(&keys.rows[b].value) : b,
          .first_page = keys.first_page ? read_early(keys.first_page + b) : 0};
}

// The one whose query rows are these.
inline __device__ Sequence sequence_at(const KeyView& keys, int32_t b, int32_t first_row, int32_t last_row) {
  const TablePlace place = table_place(keys, b);
  const int64_t start = keys.starts_at_first_page ? int64_t{place.first_page} << keys.page_size.shift() : 0;
  return {.pages = place.in(keys),
          .start = start,
          .end = start + read_early(keys.lengths + b),
          .first_row = first_row,
          .last_row = last_row};
}
inline __device__ Sequence sequence_at(const KeyView& keys, int32_t b) {
  return sequence_at(keys, b, read_early(keys.cu_q + b), read_early(keys.cu_q + b + 1));
}

// Positions [first, end) that a row sees; those at or past the sequence's end are its own branch.
struct Span {
  int64_t first, end;
};

inline __device__ Span span_of(const AttendArgs& args, const Sequence& sequence, int32_t row) {
  const KeyView& keys = args.keys;
  if (!keys.branch_lengths && !keys.causal) return {sequence.start, sequence.end};
  const int64_t end =
      keys.branch_lengths ? sequence.end + keys.branch_lengths[row] : sequence.end - (sequence.last_row - 1 - row);
  const int64_t first = args.window < 0 ? sequence.start : max(sequence.start, end - 1 - args.window);
  return {first, end};
}

inline __device__ int64_t slot_of(const KeyView& keys, const Sequence& sequence, int64_t position, int32_t row) {
  if (position >= sequence.end) return keys.branch_slots[row * keys.branch_stride + (position - sequence.end)].value;
  const auto key = static_cast<int32_t>(position - sequence.start);
  const int32_t shift = keys.page_size.shift();
  return (int64_t{sequence.pages[key >> shift].value} << shift) + (key & ((1 << shift) - 1));
}

// --- trees, of which some rows are a tile's
//
// Behind the keys in pages come places for the branches of the tile's queries, `tokens` for each. A query's rows see
// the keys in pages, but for a window, and their own places.

struct BranchLengths {
  int32_t longest, shortest;
};
// Within their bound, so that no kernel has more to do than it was launched for, whatever they hold.
inline __device__ BranchLengths branch_lengths(const KeyView& keys, int32_t first_row, int32_t last_row) {
  BranchLengths lengths{0, keys.most_branch_tokens};
  for (int32_t row = first_row; row < last_row; ++row) {
    const int32_t length = min(max(read_early(keys.branch_lengths + row), 0), keys.most_branch_tokens);
    lengths = {max(lengths.longest, length), min(lengths.shortest, length)};
  }
  return lengths;
}

// Of a row's branch; -1: it is shorter.
inline __device__ int32_t slot_in_branch(const KeyView& keys, int64_t row, int32_t token) {
  if (token >= read_early(keys.branch_lengths + row)) return -1;
  return read_early(&keys.branch_slots[row * keys.branch_stride + token].value);
}
// Of a place behind the keys in pages; -1: it is nobody's. The tile's queries begin with row `first_row`, the
// sequence's end before `last_row`.
inline __device__ int32_t slot_behind_pages(const KeyView& keys, int32_t place, int32_t tokens, int32_t first_row,
                                            int32_t last_row) {
  const int32_t query = place / tokens, row = first_row + query;
  return row < last_row ? slot_in_branch(keys, row, place - query * tokens) : -1;
}

// What a row sees: keys in pages, and places of its own branch, counted from the first key.
struct SeenOfTree {
  int32_t first, end, branch_first, branch_end;
};
// length: keys in pages. query: of the tile, whose row it is.
inline __device__ SeenOfTree seen_of_tree(const AttendArgs& args, int32_t length, int32_t tokens, int32_t query,
                                          int32_t row) {
  const int32_t branch = args.keys.branch_lengths[row], places = length + query * tokens;
  const int32_t first = args.window < 0 ? 0 : max(0, length + branch - 1 - args.window);
  return {.first = min(first, length),
          .end = length,
          .branch_first = places + max(first - length, 0),
          .branch_end = places + branch};
}

// ---

// The first key that the last row of a sequence sees: of its one query, if it has no more.
inline __device__ int32_t first_seen_by_last(const AttendArgs& args, int32_t length) {
  return args.window >= 0 && args.keys.causal ? max(0, length - 1 - args.window) : 0;
}

// From here on everything may be read and written; the same is then allowed to the next kernel.
inline __device__ void wait_and_launch_dependents() {
  griddep_wait();
  griddep_launch_dependents();
}

// Query row and head of a packed row; row < 0: none.
struct Row {
  int32_t row, head;
};

// Divides packed rows, which are few, by the heads of a kv head: exact for less than 2^24 / group, and for 256 at
// least.
struct GroupDivider {
  static constexpr int32_t kBits = 24;
  uint32_t reciprocal;

  static GroupDivider by(int32_t group) { return {((1u << kBits) + group - 1) / group}; }
  __device__ int32_t operator()(int32_t packed) const {
    return static_cast<int32_t>((static_cast<uint32_t>(packed) * reciprocal) >> kBits);
  }
};

// With a sink of this logit in the denominator (-inf: none): what a row's sum of weighted values is multiplied by.
inline __device__ float factor_of(float row_max, float sum, float sink, float value_scale) {
  if (row_max == -INFINITY) return 0;
  if (sink == -INFINITY) return __fdividef(value_scale, sum);
  const float most = fmaxf(row_max, sink);
  const float share = expf(row_max - most);
  return share / __fmaf_rn(sum, share, expf(sink - most)) * value_scale;
}

// A row's log-sum-exp, if it is asked for.
inline __device__ void write_lse(const AttendArgs& args, int64_t row, int32_t head, float row_max, float sum) {
  if (args.lse) args.lse[head * args.q.rows + row] = row_max == -INFINITY ? -INFINITY : __fadd_rn(row_max, logf(sum));
}

// A row without keys, by some threads of a block, or by all.
inline __device__ void write_empty_row(const AttendArgs& args, int64_t row, uint32_t thread, uint32_t threads) {
  for (uint32_t i = thread; i < static_cast<uint32_t>(args.out.heads * args.out.dim); i += threads)
    store(args.out.type, args.out.data, row * args.out.row_stride + i, 0);
  for (uint32_t head = thread; args.lse && head < static_cast<uint32_t>(args.q.heads); head += threads)
    args.lse[head * args.q.rows + row] = -INFINITY;
}
inline __device__ void write_empty_row(const AttendArgs& args, int64_t row) {
  write_empty_row(args, row, threadIdx.x, blockDim.x);
}

// Rows of live sequences without keys, and rows past the live ones, shared out among all blocks. first_row(b): of
// sequence b, and of `live` the first that is not live.
template <class FirstRow, class IsEmpty>
__device__ void write_empty_rows(const AttendArgs& args, int32_t live, const FirstRow& first_row,
                                 const IsEmpty& is_empty, uint32_t thread, uint32_t threads) {
  for (int32_t b = blockIdx.x; b < live; b += gridDim.x)
    if (is_empty(b))
      for (int32_t row = first_row(b); row < first_row(b + 1); ++row) write_empty_row(args, row, thread, threads);
  for (int64_t row = first_row(live) + blockIdx.x; row < args.q.rows; row += gridDim.x)
    write_empty_row(args, row, thread, threads);
}

// A kernel that takes its shared memory, of so many bytes, to begin at byte `base`. choose_gpu() has asked the device
// where it does; but variables that the kernel declares would lie before it.
template <class Args>
auto kernel_from_base(void (*kernel)(Args), size_t shared, uint32_t base) {
  cudaFuncAttributes code;
  check_cuda(cudaFuncGetAttributes(&code, kernel), "the kernel of attention is not known");
  check(code.sharedSizeBytes == 0, "attention's shared memory does not begin at byte ", base, ": its kernel declares ",
        code.sharedSizeBytes, " bytes before it");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  return kernel;
}

// Launches of what choose_gpu() chose.
void decode(const AttendArgs& args, const GpuChoice& choice, Exec& exec);
void decode_cluster(const AttendArgs& args, const GpuChoice& choice, Exec& exec);
void decode_parts(const AttendArgs& args, const GpuChoice& choice, Exec& exec);
void decode_many(const AttendArgs& args, const GpuChoice& choice, Exec& exec);
void latent_attend(const AttendArgs& args, const GpuChoice& choice, Exec& exec);
void prefill(const AttendArgs& args, const GpuChoice& choice, Exec& exec);

}  // namespace quire::attn::cuda
