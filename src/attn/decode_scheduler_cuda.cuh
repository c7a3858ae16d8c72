// Decode's tile scheduler: the keys of all sequences' tiles, one after the other, shared out among workers in equal
// stretches (decode_cut.h). Every block makes the plan for itself, from the step's lengths.
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_cut.h"
#include "attn/decode_tile_cuda.cuh"
#include "attn/stream_k_cuda.cuh"

namespace quire::attn::cuda {

static_assert(sizeof(SequenceWork) == DecodeSizes::kSequenceBytes);

// Every instruction that a block has to pass before its first load costs time. So where all sequences are one tile and
// the cut is not fixed (kPlain) nothing else is compiled, and elsewhere what only some sequences need is out of the
// way.
static __device__ __noinline__ int32_t units_of_any(const DecodeCut& cut, const SequenceWork& seq, int32_t queries) {
  return units_of(cut, seq, queries);
}
static __device__ __noinline__ void find_tile(const DecodeCut& cut, const SequenceWork& seq, int32_t queries,
                                              int32_t unit, TileWork& tile) {
  tile = tile_work(cut, seq, queries, tile_with(cut, seq, queries, unit));
}
static __device__ __noinline__ int32_t fixed_worker_begin(const DecodeCut& cut, const StreamK& stream_k,
                                                          const SequenceWork& seq, int32_t queries, int32_t unit) {
  return worker_begin(cut, stream_k, seq, queries, unit);
}
__device__ inline int32_t fixed_begin(const DecodeCut& cut, const StreamK& stream_k, const SequenceWork& seq,
                                      int32_t last_row, int32_t unit) {
  const int32_t queries = last_row - seq.first_row, in_sequence = unit - seq.units_before;
  if (is_plain(cut, queries)) {
    const TileWork tile = work_of_plain(cut, seq, queries);
    if (tile.parts <= cut.slots_of_worker) return seq.units_before + part_with(tile, in_sequence);
  }
  return seq.units_before + fixed_worker_begin(cut, stream_k, seq, queries, in_sequence);
}
static __device__ __noinline__ int32_t fixed_part_end(const Tail& tail, int32_t first) {
  return tail.part_end_at(first);
}
__device__ inline int32_t end_of_part(const Tail& tail, int32_t first) {
  return tail.queries == 0 ? part_end(first) : fixed_part_end(tail, first);
}
static __device__ __noinline__ Tail::Position position_in_tail(const Tail& tail, int32_t place) {
  return tail.at(place);
}
__device__ inline Tail::Position position_at(const Tail& tail, int32_t place) {
  return place < tail.begin ? Tail::Position{place, -1} : position_in_tail(tail, place);
}

// Exact, because pages that left the window may be gone.
__device__ inline int32_t first_seen(const AttendArgs& args, const SequenceWork& seq, int32_t last_row) {
  const KeyView& keys = args.keys;
  if (args.window < 0 || (!keys.causal && !keys.branch_lengths)) return 0;
  int32_t end = seq.length - (last_row - 1 - seq.first_row);  // of the row that ends first
  if (keys.branch_lengths) {
    end = seq.length + branch_lengths(keys, seq.first_row, last_row).shortest;
  }
  return min(max(0, end - 1 - args.window), seq.length);
}

// What the metadata say of live sequence b.
__device__ inline SequenceWork load_sequence(const AttendArgs& args, int32_t b, int32_t last_row) {
  const KeyView& keys = args.keys;
  const TablePlace place = table_place(keys, b);
  SequenceWork seq{.units_before = 0,
                   .first = 0,
                   .length = read_early(keys.lengths + b),
                   .first_row = read_early(keys.cu_q + b),
                   .table_row = place.row,
                   .first_page = place.first_page};
  seq.first = first_seen(args, seq, last_row);
  return seq;
}

// seqs: [live + 1]. Returns the live count.
template <int32_t kWarps, bool kPlain>
__device__ int32_t load_sequences(const AttendArgs& args, const DecodeCut& cut, SequenceWork* seqs) {
  __shared__ int32_t sums[kWarps];
  const KeyView& keys = args.keys;
  const int32_t live = read_early(keys.live);
  if (live == 0 && threadIdx.x == 0) seqs[0].first_row = 0;
  lay_out_line(
      live, sums,
      [&](int32_t b) {
        const int32_t last_row = read_early(keys.cu_q + b + 1);
        const SequenceWork seq = load_sequence(args, b, last_row);
        const int32_t queries = last_row - seq.first_row;
        seqs[b] = seq;
        if (b + 1 == live) seqs[live].first_row = last_row;
        return kPlain || is_plain(cut, queries) ? units_of_plain<kPlain>(cut, seq, queries)
                                                : units_of_any(cut, seq, queries);
      },
      [&](int32_t b, int32_t before) { seqs[b].units_before = before; });
  return live;
}

// The last of the sequences that begin at or before the unit.
__device__ inline int32_t sequence_of(const SequenceWork* seqs, int32_t live, int32_t unit) {
  return last_that(live, [&](int32_t b) { return seqs[b].units_before <= unit; });
}

struct Split {
  const PageId* pages;
  int32_t length;               // keys in pages; from there on the branches
  int32_t first_row, last_row;  // the sequence's query rows: first_row .. last_row - 1
  int32_t tile_row, tile_head;  // of the tile's first row: its query row, its head in the group
  int32_t rows;
  int32_t first, end;  // places of the split
  int32_t seen_first;  // keys before it are in no row's window; this and the tail only where not all is plain
  Tail tail;
  int32_t kv_head;
  bool is_whole;             // nobody else has any of the tile; if somebody has, and it was asked for:
  int32_t arrivals;          // of all splits together: one each, or one for each part
  int32_t first_worker;      // with the first of the tile's units
  int32_t first_slot, slot;  // partial results, one for each arrival: the tile's first, and this split's first

  __device__ Sequence sequence() const {
    return {.pages = pages, .start = 0, .end = length, .first_row = first_row, .last_row = last_row};
  }
};

// The splits of a worker, one after the other. Kept in a warp's shared memory, not in registers: what it says is seldom
// asked for. The whole warp calls.
template <bool kPlain>
struct TileScheduler {
  Split split;        // the one that next() came to; it may have no keys
  int32_t unit, end;  // what is left of the worker's
  int32_t worker, kv_head;
  int32_t b;  // at or before the sequence of `unit`

  __device__ void begin(const DecodeCut& cut, const SequenceWork* seqs, int32_t live, const StreamK& stream_k,
                        int32_t kv_heads) {
    const int32_t lane = threadIdx.x % kWarp;
    if (lane < 2) {
      const int32_t of_block = static_cast<int32_t>(blockIdx.x) / kv_heads;
      int32_t begins = stream_k.begin(of_block + lane);
      const int32_t sequence = sequence_of(seqs, live, begins);
      if (!kPlain && cut.is_fixed && begins < seqs[live].units_before)
        begins = fixed_begin(cut, stream_k, seqs[sequence], seqs[sequence + 1].first_row, begins);
      if (lane == 0) {
        worker = of_block;
        kv_head = static_cast<int32_t>(blockIdx.x) % kv_heads;
        unit = begins;
        b = sequence;
      } else {
        end = begins;
      }
    }
    __syncwarp();
  }

  __device__ void begin(const TileScheduler& other) {
    if (threadIdx.x % kWarp == 0) *this = other;
    __syncwarp();
  }

  __device__ bool done() const { return unit >= end; }
  __device__ void next(const AttendArgs& args, const DecodeCut& cut, const SequenceWork* seqs) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) step(args, cut, seqs);
    __syncwarp();
  }
  // And which partial results are the split's, if it is not a whole tile.
  __device__ void next(const AttendArgs& args, const DecodeCut& cut, const SequenceWork* seqs, const StreamK& stream_k,
                       int32_t workers) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      const TileWork tile = step(args, cut, seqs);
      if (!split.is_whole) find_slots(cut, seqs[b], tile, stream_k, workers);
    }
    __syncwarp();
  }

 private:
  __device__ TileWork step(const AttendArgs& args, const DecodeCut& cut, const SequenceWork* seqs) {
    while (seqs[b + 1].units_before <= unit) ++b;
    const SequenceWork seq = seqs[b];
    const int32_t last_row = seqs[b + 1].first_row, queries = last_row - seq.first_row, at = unit - seq.units_before;
    TileWork tile;
    if (kPlain || is_plain(cut, queries))
      tile = work_of_plain<kPlain>(cut, seq, queries);
    else
      find_tile(cut, seq, queries, at, tile);
    const int32_t in_tile = at - tile.units_before, count = min(end - unit, tile.units - in_tile);
    const int32_t first = tile.first + in_tile * kUnit;
    unit += count;
    split.pages = TablePlace{seq.table_row, seq.first_page}.in(args.keys);
    split.length = seq.length;
    split.first_row = seq.first_row;
    split.last_row = last_row;
    split.tile_row = seq.first_row + tile.first_query;
    split.tile_head = tile.first_head;
    split.rows = tile.rows;
    split.first = first;
    split.end = min(first + count * kUnit, tile.end);
    split.kv_head = kv_head;
    split.is_whole = in_tile == 0 && first + count * kUnit >= tile.end;
    if constexpr (!kPlain) {
      split.seen_first = tile.seen_first;
      split.tail = tile.tail;
    }
    return tile;
  }

  __device__ void find_slots(const DecodeCut& cut, const SequenceWork& seq, const TileWork& tile,
                             const StreamK& stream_k, int32_t workers) {
    const TileWorkers of_tile = workers_of(stream_k, seq, tile);
    const bool is_fixed = !kPlain && cut.is_fixed;
    const int32_t before =
        is_fixed ? part_index(min(split.first, tile.tail.begin)) - part_index(tile.first) : worker - of_tile.first;
    split.arrivals = is_fixed ? tile.parts : of_tile.last - of_tile.first + 1;
    split.first_worker = of_tile.first;
    split.first_slot = (kv_head * workers + of_tile.first + 1) * cut.slots_of_worker;
    split.slot = split.first_slot + before;
  }
};

// Slot of the key at a place; -1: there is none, it is in nobody's window, or it is past the split's end.
template <bool kPlain>
__device__ int32_t look_up(const KeyView& keys, const Split& split, int32_t place) {
  if (place >= split.end) return -1;
  int32_t key = place, query = 0, token = 0;
  if (!kPlain && place >= split.tail.begin) {
    const Tail::Position at = position_in_tail(split.tail, place);
    key = at.position;
    query = at.query;
    token = key - split.length;
  } else if (place >= split.length) {
    query = (place - split.length) / keys.most_branch_tokens;
    token = (place - split.length) % keys.most_branch_tokens;
  }
  if (key >= split.length) return slot_in_branch(keys, split.tile_row + query, token);
  const int32_t shift = keys.page_size.shift();
  return !kPlain && key < split.seen_first ? -1
                                           : slot_in_page(read_early(&split.pages[key >> shift].value), shift, key);
}

}  // namespace quire::attn::cuda
