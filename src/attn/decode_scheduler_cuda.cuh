// Decode's tile scheduler: the keys of all sequences, one after the other, shared out among workers in equal stretches
// of units (stream-K).
//
//   keys     of a sequence: those in pages from the first that any row sees, then most_branch_tokens places for the
//            branch of each of its query rows; a place is seen by its own row alone and may hold no token
//   unit     kUnit keys of a sequence, by which the work is shared out
//   worker   as many blocks as there are kv heads; each has the worker's units for one kv head
//   split    what a worker has of one sequence
//
// Every block makes the plan for itself, from the step's lengths.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "attn/stream_k_cuda.cuh"

namespace quire::attn::cuda {

constexpr int32_t kUnit = 64;

// Of the step's metadata. They may be read while the kernel before still runs, which is too early to trust L1: it
// may have what an earlier step wrote.
template <class T>
__device__ T read(const T* of_step) {
  return __ldcg(of_step);
}

// What is known of a sequence, in shared memory. One more follows the last sequence's and ends it.
struct SequenceWork {
  int32_t units_before;  // of one kv head in the sequences before
  int32_t first;         // keys before it are in no row's window
  int32_t length;        // keys in pages
  int32_t first_row;     // of its queries; they end where the next sequence's begin
  int32_t table_row, first_page;
};
static_assert(sizeof(SequenceWork) == DecodeSizes::kSequenceBytes);

// Exact, because pages that left the window may be gone.
__device__ inline int32_t first_seen(const AttendArgs& args, const SequenceWork& seq, int32_t last_row) {
  const KeyView& keys = args.keys;
  if (args.window < 0 || (!keys.causal && !keys.branch_lengths)) return 0;
  int32_t end = seq.length - (last_row - 1 - seq.first_row);  // of the row that ends first
  if (keys.branch_lengths) {
    int32_t shortest = read(keys.branch_lengths + seq.first_row);
    for (int32_t row = seq.first_row + 1; row < last_row; ++row)
      shortest = min(shortest, read(keys.branch_lengths + row));
    end = seq.length + shortest;
  }
  return min(max(0, end - 1 - args.window), seq.length);
}

// What the metadata say of live sequence b.
__device__ inline SequenceWork load_sequence(const AttendArgs& args, int32_t b, int32_t last_row) {
  const KeyView& keys = args.keys;
  SequenceWork seq{.units_before = 0,
                   .first = 0,
                   .length = read(keys.lengths + b),
                   .first_row = read(keys.cu_q + b),
                   .table_row = keys.rows ? read(&keys.rows[b].value) : b,
                   .first_page = keys.first_page ? read(keys.first_page + b) : 0};
  seq.first = first_seen(args, seq, last_row);
  return seq;
}

__device__ inline int32_t units_of(const KeyView& keys, const SequenceWork& seq, int32_t last_row) {
  const int32_t queries = last_row - seq.first_row;
  if (queries == 0) return 0;
  return (seq.length - seq.first + queries * keys.most_branch_tokens + kUnit - 1) / kUnit;
}

// seqs: [live + 1]. Returns the live count. Nothing is read past it: nobody wrote that.
template <int32_t kWarps>
__device__ int32_t load_sequences(const AttendArgs& args, SequenceWork* seqs) {
  constexpr int32_t kThreads = kWarps * kWarp;
  __shared__ int32_t sums[kWarps];
  const KeyView& keys = args.keys;
  const int32_t live = read(keys.live);
  int32_t carry = 0;
  for (int32_t first = 0; first <= live; first += kThreads) {
    const int32_t b = first + static_cast<int32_t>(threadIdx.x);
    SequenceWork seq{};
    int32_t units = 0, total;
    if (b < live) {
      const int32_t last_row = read(keys.cu_q + b + 1);
      seq = load_sequence(args, b, last_row);
      units = units_of(keys, seq, last_row);
      if (b + 1 == live) seqs[live].first_row = last_row;
    }
    seq.units_before = carry + sum_before(units, sums, total);
    if (b < live) seqs[b] = seq;
    if (b == live) seqs[live].units_before = seq.units_before;
    if (b == live && live == 0) seqs[live].first_row = 0;
    carry += total;
    __syncthreads();
  }
  return live;
}

// Where a live sequence's pages begin in their table.
__device__ inline const PageId* pages_of(const KeyView& keys, const SequenceWork& seq) {
  return keys.pages + seq.table_row * keys.stride + seq.first_page;
}

// The last of the sequences that begin at or before the unit.
__device__ inline int32_t sequence_of(const SequenceWork* seqs, int32_t live, int32_t unit) {
  return last_that(live, [&](int32_t b) { return seqs[b].units_before <= unit; });
}

// Keys are counted along the sequence, the first in its pages being 0, those of the branches following its last.
struct Split {
  const PageId* pages;
  int32_t length;               // keys in pages; from there on the branches
  int32_t first_row, last_row;  // query rows first_row .. last_row - 1
  int32_t first, end;           // keys of the split
  int32_t b, kv_head;
  int32_t num_splits;             // of the whole sequence; of these, if there are more than one and it was asked for:
  int32_t split_idx, first_slot;  // which this is; the place in the workspace of the block that has the first

  // A block leaves at most two splits, one of a sequence that earlier blocks have the begin of, one of a sequence that
  // later blocks have the rest of.
  __device__ int32_t slot(int32_t index, int32_t kv_heads) const {
    return first_slot + 2 * kv_heads * index + (index == 0 ? 1 : 0);
  }
  __device__ Sequence sequence() const {
    return {.pages = pages, .start = 0, .end = length, .first_row = first_row, .last_row = last_row};
  }
};

// The splits of a worker, one after the other. Kept in a warp's shared memory, not in registers: what it says is seldom
// asked for. The whole warp calls.
struct TileScheduler {
  Split split;        // the one that next() came to
  int32_t unit, end;  // what is left of the worker's
  int32_t worker, kv_head;
  int32_t b;  // at or before the sequence of `unit`

  __device__ void begin(const SequenceWork* seqs, int32_t live, const StreamK& stream_k, int32_t kv_heads) {
    if (threadIdx.x % kWarp == 0) {
      worker = static_cast<int32_t>(blockIdx.x) / kv_heads;
      kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads;
      unit = stream_k.begin(worker);
      end = stream_k.begin(worker + 1);
      b = sequence_of(seqs, live, unit);
    }
    __syncwarp();
  }

  __device__ void begin(const TileScheduler& other) {
    if (threadIdx.x % kWarp == 0) *this = other;
    __syncwarp();
  }

  __device__ bool done() const { return unit >= end; }
  __device__ void next(const AttendArgs& args, const SequenceWork* seqs) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) step(args, seqs);
    __syncwarp();
  }
  // And which of its sequence's splits it is.
  __device__ void next(const AttendArgs& args, const SequenceWork* seqs, const StreamK& stream_k) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      step(args, seqs);
      find_index(args.kv.kv_heads, seqs, stream_k);
    }
    __syncwarp();
  }

 private:
  __device__ void step(const AttendArgs& args, const SequenceWork* seqs) {
    const KeyView& keys = args.keys;
    while (seqs[b + 1].units_before <= unit) ++b;
    const SequenceWork seq = seqs[b];
    const int32_t last_row = seqs[b + 1].first_row, units = seqs[b + 1].units_before - seq.units_before;
    const int32_t at = unit - seq.units_before, count = min(end - unit, units - at);
    const int32_t keys_end = seq.length + (last_row - seq.first_row) * keys.most_branch_tokens;
    unit += count;
    split = {.pages = pages_of(keys, seq),
             .length = seq.length,
             .first_row = seq.first_row,
             .last_row = last_row,
             .first = seq.first + at * kUnit,
             .end = min(seq.first + (at + count) * kUnit, keys_end),
             .b = b,
             .kv_head = kv_head,
             .num_splits = count == units ? 1 : 0,
             .split_idx = 0,
             .first_slot = 0};
  }

  __device__ void find_index(int32_t kv_heads, const SequenceWork* seqs, const StreamK& stream_k) {
    if (split.num_splits == 1) return;
    const int32_t first_worker = stream_k.worker_of(seqs[b].units_before),
                  last_worker = stream_k.worker_of(seqs[b + 1].units_before - 1);
    split.num_splits = last_worker - first_worker + 1;
    split.split_idx = worker - first_worker;
    split.first_slot = 2 * (first_worker * kv_heads + split.kv_head);
  }
};

// Slot of a key; -1: there is none, or it is past the split's end.
__device__ inline int32_t look_up(const KeyView& keys, const Split& split, int32_t key) {
  if (key >= split.end) return -1;
  const int32_t shift = keys.page_size.shift();
  if (key < split.length) return slot_in_page(read(&split.pages[key >> shift].value), shift, key);
  const int32_t place = key - split.length, token = place % keys.most_branch_tokens;
  const int64_t row = split.first_row + place / keys.most_branch_tokens;
  if (token >= read(keys.branch_lengths + row)) return -1;
  return read(&keys.branch_slots[row * keys.branch_stride + token].value);
}

}  // namespace quire::attn::cuda
