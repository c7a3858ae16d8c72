// The writer on the GPU: one launch writes all sets of a step, so it can be the first node of a captured graph. Inputs
// that have a source are fetched before; plain decode steps have a kernel that does both (write_decode_cuda.h).
//
// Every block has one role, given by its index: a draft step's plane of the sequence sets, the local set, the
// encoder's, the branches, or a share of the tables. No role reads what another one writes; all are computed from the
// inputs, so nothing waits. Sums over the batch are scans of one block, chunk after chunk.
#include <cuda_runtime.h>

#include <cstdint>

#include "attn/sequence.h"
#include "attn/step_fetch_cuda.cuh"
#include "attn/step_upload_cuda.h"
#include "attn/write_decode_cuda.h"
#include "attn/write_metadata.h"
#include "base/check.h"
#include "base/cuda_call.h"
#include "base/cuda_launch.cuh"

namespace quire::attn::cuda {
namespace {

using quire::cuda::check_cuda;
using quire::cuda::stream_of;

constexpr int32_t kThreads = 256, kWarp = 32, kWarps = kThreads / kWarp;
constexpr int32_t kTableBlocks = 64;  // for page tables and tree slots

// --- what the kernel is given: addresses, resolved on the host

struct Target : SequenceTarget {
  const PageId* source;  // the request table
  int64_t source_stride;
};

struct BranchTarget {
  int32_t* lengths;  // [planes, rows of the batch]
  int32_t* cu_q;
  int32_t* cu_k;  // [planes, rows of the batch + 1]
  TokenSlot* slots;
  TokenSlot* window_slots;  // null: no window pool
  int64_t stride;           // of slots
  int32_t of_each;          // rows of a request
  int32_t planes;
};

struct LocalTarget {
  int32_t* live_count;
  int32_t* cu_q;
  int32_t* lengths;
  RequestRow* rows;
  int32_t* first_page;
  PageId* table;
  int64_t table_stride;
};

struct EncoderTarget {
  int32_t* lengths;
  int32_t* cu_k;
  PageId* table;
  int64_t table_stride;
};

struct BlockRoles {  // blocks of each kind, in this order
  int32_t planes, local, encoder, branches, tables;
  int32_t all() const { return planes + local + encoder + branches + tables; }
};

struct Write {
  Mode mode;
  bool materialised, encoder, window, local;
  int32_t captured, batch;
  int32_t page_shift;
  int32_t added_keys;  // to the given length, at plane 0
  int32_t queries;     // of every request; 0: its extend length
  bool ragged;         // trees of several sizes
  int32_t chunk;
  int32_t draft_steps;
  StepInputs in;
  Target main, windowed;
  BranchTarget branches;
  LocalTarget chunks;
  EncoderTarget encoded;
  int32_t* arrivals;  // [kMostSplitBlocks] of the splits of tiles
  int32_t* next_tile;
  BlockRoles roles;
};

// --- sums over a block

struct Sums {
  int64_t warp[kWarps];
};

__device__ int64_t warp_prefix(int64_t value) {
  for (int32_t step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(~0u, value, step);
    if (static_cast<int32_t>(threadIdx.x) % kWarp >= step) value += other;
  }
  return value;
}

// The sum of the values of all threads before this one, and in `total` of all. Every thread calls it.
__device__ int64_t block_prefix(int64_t value, Sums& sums, int64_t& total) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t inclusive = warp_prefix(value);
  __syncthreads();  // whoever still reads the sums before
  if (lane == kWarp - 1) sums.warp[warp] = inclusive;
  __syncthreads();
  int64_t before = 0;
  total = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums.warp[w];
    total += sums.warp[w];
  }
  return before + inclusive - value;
}

// write(i, sum of value(0 .. i - 1)) for i in [0, count]; the value of `count` itself is never asked for.
template <class Value, class Put>
__device__ void scan(int32_t count, Sums& sums, Value value, Put put) {
  int64_t carry = 0;
  for (int32_t first = 0; first <= count; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    int64_t total;
    const int64_t before = block_prefix(i < count ? value(i) : 0, sums, total);
    if (i <= count) put(i, carry + before);
    carry += total;
  }
}

// --- what a mode makes of a request

struct Step {
  const Write& w;
  int32_t live;

  __device__ bool is_live(int32_t b) const { return b < live; }
  __device__ int32_t sequences() const { return w.materialised ? w.captured : live; }
  __device__ int32_t keys(int32_t b, int32_t plane) const {
    return is_live(b) ? w.in.lengths[b].value + w.added_keys + plane : 1;
  }
  __device__ int32_t queries(int32_t b) const {
    if (w.queries) return w.queries;
    return is_live(b) ? w.in.extend_lengths[b].value : 0;
  }
  __device__ int32_t encoder_keys(int32_t b) const { return is_live(b) ? w.in.encoder_lengths[b].value : 1; }
  __device__ int32_t pages_for(int32_t tokens) const { return (tokens + (1 << w.page_shift) - 1) >> w.page_shift; }
  __device__ int32_t first_page(int32_t b) const {
    return w.encoder && is_live(b) ? pages_for(w.in.encoder_lengths[b].value) : 0;
  }
  __device__ int32_t row(int32_t b) const { return is_live(b) ? w.in.rows[b].value : 0; }
};

// --- what the kernels count by

__device__ void write_counters(const Step& step) {
  const Write& w = step.w;
  if (threadIdx.x == 0) *w.next_tile = 0;
  for (int32_t i = threadIdx.x; i < kMostSplitBlocks; i += kThreads) w.arrivals[i] = 0;
}

// --- sets of whole sequences

__device__ void write_requests(const Step& step, const Target& to, Sums& sums) {
  if (threadIdx.x == 0) *to.live_count = step.live;
  for (int32_t b = threadIdx.x; b < step.sequences(); b += kThreads) {
    to.rows[b] = RequestRow{step.row(b)};
    to.first_page[b] = step.first_page(b);
  }
  scan(
      step.sequences(), sums, [&](int32_t b) { return step.queries(b); },
      [&](int32_t b, int64_t before) { to.cu_q[b] = static_cast<int32_t>(before); });
}

__device__ void write_plane(const Step& step, const Target& to, int32_t plane, Sums& sums) {
  const Write& w = step.w;
  int32_t* lengths = to.lengths + int64_t{plane} * w.batch;
  for (int32_t b = threadIdx.x; b < step.sequences(); b += kThreads) lengths[b] = step.keys(b, plane);
  if (!w.materialised) return;
  const int64_t sums_at = int64_t{plane} * (w.batch + 1);
  scan(
      step.sequences(), sums, [&](int32_t b) { return step.keys(b, plane); },
      [&](int32_t b, int64_t before) { to.cu_k[sums_at + b] = static_cast<int32_t>(before); });
}

__device__ void write_sequences(const Step& step, const Target& to, int32_t plane, Sums& sums) {
  if (plane == 0) write_requests(step, to, sums);
  write_plane(step, to, plane, sums);
}

// The last of `requests` that begins at or before `index`.
__device__ int32_t last_request(const int32_t* begin, int32_t requests, int32_t index) {
  int32_t low = 0, high = requests;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (begin[middle] <= index)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// --- local chunks

struct Chunks {
  const Step& step;
  const int32_t* begin;    // [sequences + 1] chunks before request b
  const int32_t* q_begin;  // [sequences + 1] queries before it

  __device__ int32_t prefix(int32_t b) const { return step.keys(b, 0) - step.queries(b); }
  __device__ int32_t first_queries(int32_t b) const {
    const int32_t room = step.w.chunk - prefix(b) % step.w.chunk;
    return room < step.queries(b) ? room : step.queries(b);
  }
  __device__ int32_t count(int32_t b) const {
    if (!step.is_live(b)) return 1;
    return 1 + (step.queries(b) - first_queries(b) + step.w.chunk - 1) / step.w.chunk;
  }
  __device__ int32_t request_of(int32_t index) const { return last_request(begin, step.sequences(), index); }
};

struct PlacedChunk {
  int32_t request, start, keys, queries, queries_before;
};

__device__ PlacedChunk chunk_at(const Chunks& chunks, int32_t index) {
  const Step& step = chunks.step;
  const int32_t b = chunks.request_of(index), chunk = step.w.chunk;
  if (!step.is_live(b))
    return {.request = b, .start = 0, .keys = 1, .queries = step.queries(b), .queries_before = chunks.q_begin[b]};
  const int32_t at = index - chunks.begin[b], first = chunks.first_queries(b);
  const int32_t before = at == 0 ? 0 : first + (at - 1) * chunk;
  const int32_t left = step.queries(b) - before;
  const bool last = index + 1 == chunks.begin[b] + chunks.count(b);
  return {.request = b,
          .start = (chunks.prefix(b) / chunk + at) * chunk,
          .keys = last ? (step.keys(b, 0) - 1) % chunk + 1 : chunk,
          .queries = at == 0        ? first
                     : left < chunk ? left
                                    : chunk,
          .queries_before = chunks.q_begin[b] + before};
}

// Fills both arrays in the block's shared memory.
__device__ Chunks find_chunks(const Step& step, int32_t* shared, Sums& sums) {
  int32_t* begin = shared;
  int32_t* q_begin = shared + step.w.batch + 1;
  const Chunks chunks{step, begin, q_begin};
  scan(
      step.sequences(), sums, [&](int32_t b) { return chunks.count(b); },
      [&](int32_t b, int64_t before) { begin[b] = static_cast<int32_t>(before); });
  scan(
      step.sequences(), sums, [&](int32_t b) { return step.queries(b); },
      [&](int32_t b, int64_t before) { q_begin[b] = static_cast<int32_t>(before); });
  __syncthreads();
  return chunks;
}

__device__ void write_local(const Step& step, int32_t* shared, Sums& sums) {
  const Write& w = step.w;
  const LocalTarget& to = w.chunks;
  const Chunks chunks = find_chunks(step, shared, sums);
  const int32_t live = chunks.begin[step.live], all = chunks.begin[step.sequences()];
  if (threadIdx.x == 0) {
    *to.live_count = live;
    to.cu_q[all] = chunks.q_begin[step.sequences()];
  }
  for (int32_t i = threadIdx.x; i < all; i += kThreads) {
    const PlacedChunk chunk = chunk_at(chunks, i);
    to.cu_q[i] = chunk.queries_before;
    to.lengths[i] = chunk.keys;
    to.rows[i] = RequestRow{step.row(chunk.request)};
    to.first_page[i] = chunk.start >> w.page_shift;
  }
}

// --- the encoder

__device__ void write_encoder(const Step& step, Sums& sums) {
  const Write& w = step.w;
  const EncoderTarget& to = w.encoded;
  for (int32_t b = threadIdx.x; b < step.sequences(); b += kThreads) to.lengths[b] = step.encoder_keys(b);
  if (!w.materialised) return;
  scan(
      step.sequences(), sums, [&](int32_t b) { return step.encoder_keys(b); },
      [&](int32_t b, int64_t before) { to.cu_k[b] = static_cast<int32_t>(before); });
}

// --- branches

// Rows of branches, a request's one after the other: as many of each, or in ragged trees as many as it has queries.
struct BranchRows {
  const Step& step;
  const int32_t* begin;  // [live + 1] of ragged trees, in the block's shared memory

  __device__ int32_t request_of(int32_t row) const {
    if (!step.w.ragged) return row / step.w.branches.of_each;
    return last_request(begin, step.live, row);
  }
  __device__ int32_t nodes_of(int32_t b) const { return step.w.ragged ? step.queries(b) : step.w.branches.of_each; }
  __device__ int32_t first_of(int32_t b) const { return step.w.ragged ? begin[b] : b * step.w.branches.of_each; }
  __device__ int32_t live() const { return first_of(step.live); }
  __device__ int32_t all() const { return step.w.ragged ? live() : first_of(step.sequences()); }
};

__device__ BranchRows find_branch_rows(const Step& step, int32_t* shared, Sums& sums) {
  if (step.w.ragged) {
    scan(
        step.live, sums, [&](int32_t b) { return step.queries(b); },
        [&](int32_t b, int64_t before) { shared[b] = static_cast<int32_t>(before); });
    __syncthreads();
  }
  return {step, shared};
}

__device__ int32_t visible_nodes(const Write& w, int32_t row, int32_t nodes) {
  const uint8_t* mask = w.in.tree_mask + int64_t{row} * w.branches.of_each;
  int32_t visible = 0;
  for (int32_t node = 0; node < nodes; ++node) visible += mask[node] != 0;
  return visible;
}

__device__ void write_branch_lengths(const BranchRows& branches, Sums& sums) {
  const Write& w = branches.step.w;
  const BranchTarget& to = w.branches;
  const int32_t rows = branches.all(), live_rows = branches.live();
  const int64_t most = int64_t{w.batch} * to.of_each;
  for (int32_t plane = 0; plane < to.planes; ++plane) {
    const auto tokens = [&](int32_t row) {
      if (row >= live_rows) return 1;
      if (w.mode == Mode::draft_tree) return plane + 1;
      return visible_nodes(w, row, branches.nodes_of(branches.request_of(row)));
    };
    for (int32_t row = threadIdx.x; row < rows; row += kThreads) to.lengths[plane * most + row] = tokens(row);
    if (!w.materialised) continue;
    scan(rows, sums, tokens,
         [&](int32_t row, int64_t before) { to.cu_k[plane * (most + 1) + row] = static_cast<int32_t>(before); });
    for (int32_t row = threadIdx.x; row <= rows; row += kThreads) to.cu_q[row] = row;
  }
}

__device__ void write_draft_slots(const Step& step) {
  const BranchTarget& to = step.w.branches;
  const int32_t rows = step.sequences() * to.of_each, live_rows = step.live * to.of_each;
  for (int32_t i = threadIdx.x; i < rows * to.planes; i += kThreads) {
    const int32_t row = i / to.planes, t = i % to.planes;
    if (row < live_rows)
      to.slots[row * to.stride + t] = step.w.in.draft_slots[int64_t{row} * step.w.draft_steps + t];
    else if (t == 0)
      to.slots[row * to.stride] = TokenSlot{0};
  }
}

// --- tables: a warp takes a row at a time

struct WarpTurn {
  int32_t first, step;
};
__device__ WarpTurn warp_turn(int32_t block, int32_t blocks) {
  return {block * kWarps + static_cast<int32_t>(threadIdx.x) / kWarp, blocks * kWarps};
}

__device__ void copy_row(PageId* to, const PageId* from, int32_t count) {
  for (int32_t i = threadIdx.x % kWarp; i < count; i += kWarp) to[i] = from[i];
}

__device__ void pad_row(PageId* to) {
  if (threadIdx.x % kWarp == 0) *to = PageId{0};
}

__device__ void write_sequence_table(const Step& step, const Target& to, WarpTurn turn) {
  const int32_t last_plane = step.w.roles.planes - 1;
  for (int32_t b = turn.first; b < step.sequences(); b += turn.step) {
    PageId* row = to.table + b * to.table_stride;
    if (!step.is_live(b))
      pad_row(row);
    else
      copy_row(row, to.source + step.row(b) * to.source_stride + step.first_page(b),
               step.pages_for(step.keys(b, last_plane)));
  }
}

__device__ void write_local_table(const Step& step, const Chunks& chunks, WarpTurn turn) {
  const LocalTarget& to = step.w.chunks;
  const Target& main = step.w.main;
  for (int32_t i = turn.first; i < chunks.begin[step.sequences()]; i += turn.step) {
    const PlacedChunk chunk = chunk_at(chunks, i);
    PageId* row = to.table + i * to.table_stride;
    if (!step.is_live(chunk.request))
      pad_row(row);
    else
      copy_row(row, main.source + step.row(chunk.request) * main.source_stride + (chunk.start >> step.w.page_shift),
               step.pages_for(chunk.keys));
  }
}

__device__ void write_encoder_table(const Step& step, WarpTurn turn) {
  const EncoderTarget& to = step.w.encoded;
  for (int32_t b = turn.first; b < step.sequences(); b += turn.step) {
    PageId* row = to.table + b * to.table_stride;
    if (!step.is_live(b))
      pad_row(row);
    else
      copy_row(row, step.w.main.source + step.row(b) * step.w.main.source_stride, step.pages_for(step.encoder_keys(b)));
  }
}

// The slots of the nodes that a row's mask names, in order: 32 nodes at a time, each lane's place is the number of
// visible nodes before it.
__device__ void write_tree_slots(const BranchRows& branches, const Target& from, TokenSlot* slots, WarpTurn turn) {
  const Step& step = branches.step;
  const Write& w = step.w;
  const int32_t lane = threadIdx.x % kWarp;
  for (int32_t row = turn.first; row < branches.all(); row += turn.step) {
    TokenSlot* out = slots + row * w.branches.stride;
    const int32_t b = branches.request_of(row);
    if (!step.is_live(b)) {
      if (lane == 0) *out = TokenSlot{0};
      continue;
    }
    const uint8_t* mask = w.in.tree_mask + int64_t{row} * w.branches.of_each;
    const PageId* pages = from.source + step.row(b) * from.source_stride;
    int32_t before = 0;
    for (int32_t first = 0, nodes = branches.nodes_of(b); first < nodes; first += kWarp) {
      const int32_t node = first + lane;
      const bool visible = node < nodes && mask[node];
      const uint32_t all = __ballot_sync(~0u, visible);
      if (visible) {
        const int32_t position = w.in.lengths[b].value + node;
        const int32_t page = pages[position >> w.page_shift].value;
        out[before + __popc(all & ((1u << lane) - 1))] =
            TokenSlot{(page << w.page_shift) + (position & ((1 << w.page_shift) - 1))};
      }
      before += __popc(all);
    }
  }
}

__device__ void write_tables(const Step& step, WarpTurn turn, int32_t* shared, Sums& sums) {
  const Write& w = step.w;
  if (w.mode == Mode::verify_tree) {
    const BranchRows branches = find_branch_rows(step, shared, sums);
    write_tree_slots(branches, w.main, w.branches.slots, turn);
    if (w.window) write_tree_slots(branches, w.windowed, w.branches.window_slots, turn);
  }
  if (!w.materialised) return;
  write_sequence_table(step, w.main, turn);
  if (w.window) write_sequence_table(step, w.windowed, turn);
  if (w.encoder) write_encoder_table(step, turn);
  if (w.local) write_local_table(step, find_chunks(step, shared, sums), turn);
}

// --- the kernels

__global__ void __launch_bounds__(kThreads) write_kernel(const __grid_constant__ Write w) {
  extern __shared__ int32_t shared[];
  __shared__ Sums sums;
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const Step step{w, *w.in.live};
  int32_t block = blockIdx.x;
  if (w.in.source.count > 0 && block == 0 && threadIdx.x == 0) end_turn(w.in.source, turn_of(w.in.source));
  if (block < w.roles.planes) {
    if (block == 0) write_counters(step);
    write_sequences(step, w.main, block, sums);
    if (w.window) write_sequences(step, w.windowed, block, sums);
    return;
  }
  block -= w.roles.planes;
  if (block < w.roles.local) return write_local(step, shared, sums);
  block -= w.roles.local;
  if (block < w.roles.encoder) return write_encoder(step, sums);
  block -= w.roles.encoder;
  if (block < w.roles.branches) {
    write_branch_lengths(find_branch_rows(step, shared, sums), sums);
    if (w.mode == Mode::draft_tree) write_draft_slots(step);
    return;
  }
  block -= w.roles.branches;
  write_tables(step, warp_turn(block, w.roles.tables), shared, sums);
}

struct Follow {
  const int32_t* live;
  const TokenSlot* given;  // draft_slots
  const int32_t* parents;
  TokenSlot* slots;
  int64_t stride;
  int32_t branches, step;
};

// A block is a request's; a thread takes whole columns, one after the other, so only shared memory stands between.
__global__ void __launch_bounds__(kThreads) follow_kernel(const __grid_constant__ Follow f) {
  extern __shared__ int32_t column[];
  const int32_t b = blockIdx.x;
  if (b >= *f.live) return;
  const int64_t first = int64_t{b} * f.branches;
  TokenSlot* rows = f.slots + first * f.stride;
  for (int32_t t = 0; t <= f.step; ++t) {
    for (int32_t c = threadIdx.x; c < f.branches; c += kThreads) column[c] = rows[c * f.stride + t].value;
    __syncthreads();
    for (int32_t c = threadIdx.x; c < f.branches; c += kThreads)
      rows[c * f.stride + t] = TokenSlot{column[f.parents[first + c]]};
    __syncthreads();
  }
  const int32_t next = f.step + 1;
  for (int32_t c = threadIdx.x; c < f.branches; c += kThreads)
    rows[c * f.stride + next] = f.given[(first + c) * f.stride + next];
}

// --- what the host prepares

Target target_of(const MetadataArena& arena, const SequenceSet& set, Buf page_table, const kv::TableView& table) {
  return {sequence_target(arena, set, page_table), table.pages, table.stride};
}

template <class T>
T* found(const MetadataArena& arena, Buf id) {
  return reinterpret_cast<T*>(arena.find(id));  // null: the arena does not have it, and no step writes it
}

BranchTarget branch_target(const MetadataArena& arena, Mode mode) {
  const bool draft = mode == Mode::draft_tree;
  const Buf slots = draft ? Buf::draft_branch_page_table : Buf::verify_tree_branch_page_table;
  return {
      .lengths = arena.counts(draft ? Buf::draft_branch_cache_seqlens : Buf::verify_tree_branch_cache_seqlens),
      .cu_q = found<int32_t>(arena, draft ? Buf::draft_branch_cu_seqlens_q : Buf::verify_tree_branch_cu_seqlens_q),
      .cu_k = found<int32_t>(arena, draft ? Buf::draft_branch_cu_seqlens_k : Buf::verify_tree_branch_cu_seqlens_k),
      .slots = arena.slots(slots),
      .window_slots = arena.slots(Buf::window_branch_page_table),
      .stride = arena.shape(slots).columns,
      .of_each = branch_rows(mode, arena.limits()),
      .planes = planes_of(mode, arena.limits()),
  };
}

LocalTarget local_target(const MetadataArena& arena) {
  return {.live_count = arena.counts(Buf::local_live_count),
          .cu_q = arena.counts(Buf::local_local_query_start_loc),
          .lengths = arena.counts(Buf::local_local_seqused_k),
          .rows = arena.rows(Buf::local_request_row),
          .first_page = arena.counts(Buf::local_first_page),
          .table = found<PageId>(arena, Buf::local_local_block_table),
          .table_stride = arena.shape(Buf::local_local_block_table).columns};
}

EncoderTarget encoder_target(const MetadataArena& arena) {
  return {.lengths = arena.counts(Buf::encoder_encoder_lens_int32),
          .cu_k = found<int32_t>(arena, Buf::encoder_encoder_cu_seqlens_k),
          .table = found<PageId>(arena, Buf::encoder_encoder_page_table),
          .table_stride = arena.shape(Buf::encoder_encoder_page_table).columns};
}

Write write_of(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena) {
  const Limits& limits = arena.limits();
  const bool materialised = shape.form == Form::materialised, has_tree = is_tree(shape.mode);
  const bool has_tables = materialised || shape.mode == Mode::verify_tree;
  Write w{.mode = shape.mode,
          .materialised = materialised,
          .encoder = shape.encoder,
          .window = shape.window_table.has_value(),
          .local = shape.local,
          .captured = shape.captured,
          .batch = limits.batch,
          .page_shift = limits.page_size.shift(),
          .added_keys = added_keys(shape.mode, limits),
          .queries = queries_of_all(shape, limits),
          .ragged = shape.ragged,
          .chunk = limits.chunk,
          .draft_steps = limits.draft_steps,
          .in = inputs,
          .main = target_of(arena, sequence_set(main_set(shape.mode)), main_page_table(shape.mode), shape.table),
          .windowed = {},
          .branches = {},
          .chunks = local_target(arena),
          .encoded = encoder_target(arena),
          .arrivals = arena.counts(Buf::split_arrivals),
          .next_tile = arena.counts(Buf::split_next_tile),
          .roles = {.planes = sequence_planes(shape.mode, limits),
                    .local = shape.local,
                    .encoder = shape.encoder,
                    .branches = has_tree,
                    .tables = has_tables ? kTableBlocks : 0}};
  if (shape.window_table)
    w.windowed = target_of(arena, sequence_set(Set::window), Buf::window_page_table, *shape.window_table);
  if (has_tree) w.branches = branch_target(arena, shape.mode);
  return w;
}

}  // namespace

void write_metadata(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  constexpr int32_t kMostBatch = 4096;  // two numbers of each request fit the shared memory that every GPU gives
  const Limits& limits = arena.limits();
  check_arena(shape, arena, Device::cuda);
  check(limits.batch <= kMostBatch, "the writer of the GPU takes batches of ", kMostBatch, ", not of ", limits.batch);
  if (can_write_decode(shape, inputs)) return write_decode(shape, inputs, arena, exec);
  if (inputs.source.count > 0) fetch(fetch_args(shape, inputs, limits), exec);
  const Write w = write_of(shape, inputs, arena);
  const size_t lists = shape.local ? 2 : shape.ragged ? 1 : 0;  // of a number of each request
  const size_t shared = lists * (static_cast<size_t>(limits.batch) + 1) * sizeof(int32_t);
  quire::cuda::launch_after(write_kernel, dim3(static_cast<uint32_t>(w.roles.all())), kThreads, shared, stream_of(exec),
                            "the metadata writer", w);
}

void follow_parents(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, int32_t step,
                    const int32_t* parents, Exec& exec) {
  const Limits& limits = arena.limits();
  check_follow(shape, limits, step);
  const Follow follow{.live = inputs.live,
                      .given = inputs.draft_slots,
                      .parents = parents,
                      .slots = arena.slots(Buf::draft_branch_page_table),
                      .stride = limits.draft_steps,
                      .branches = limits.topk,
                      .step = step};
  follow_kernel<<<shape.captured, kThreads, limits.topk * sizeof(int32_t), stream_of(exec)>>>(follow);
  check_cuda(cudaGetLastError(), "the branches were not reordered");
}

}  // namespace quire::attn::cuda
