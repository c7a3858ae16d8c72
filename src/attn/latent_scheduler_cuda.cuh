// Which rows and keys the thread blocks of latent attention take, one split after the other. (query row, head) pairs of
// a sequence are packed into blocks of 64 rows; how rows and keys are cut, see latent_cut.h.
//
//   split keys    Split-KV: all units are one line, shared out among the workers. A worker may begin or end inside a
//                 tile; such a split goes to the workspace, and the block that arrives last merges the splits in the
//                 order of their keys. The plan is made here from the step's lengths, so a captured graph stays
//                 balanced whatever they are. Where no sequence has many queries, a worker has a thread block for each
//                 of its blocks of rows; where only the step knows how many there are, it is a pair of thread blocks.
//   dealt tiles   Where tiles are many or short. Those of a sequence are dealt to the workers from the last to the
//                 first, which have the most keys and the fewest, and every second round backwards.
//
// Blocks of a pair (a cluster) have neighbouring blocks of rows and the same keys at the same time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/latent_cut.h"
#include "attn/stream_k_cuda.cuh"

namespace quire::attn::cuda::latent {

constexpr int32_t kRows = kLatentRows, kKeys = kLatentKeys;

// A block of rows of one sequence, and which of the keys this thread block takes for it.
struct Split {
  Sequence sequence;
  int32_t b, row_block;
  int32_t rows;                      // of the block; none: what is made is nobody's
  Keys loaded;                       // what lies outside these is not read
  int32_t branch;                    // places of each query behind the keys in pages
  int32_t tile, end;                 // tiles of 64 keys: tile .. end - 1, one at least
  Keys seen_by_all;                  // no row needs a mask there
  int32_t first_worker, num_splits;  // of the whole tile: one a worker
};

// Who a thread block is: the blocks of a worker go through the same keys.
struct Place {
  int32_t row_blocks, pair;  // of a worker

  __device__ int32_t workers() const { return static_cast<int32_t>(gridDim.x) / row_blocks; }
  __device__ int32_t worker() const { return static_cast<int32_t>(blockIdx.x) / row_blocks; }
  __device__ int32_t index() const { return static_cast<int32_t>(blockIdx.x) % row_blocks; }       // in the worker
  __device__ int32_t rank() const { return pair > 1 ? static_cast<int32_t>(blockIdx.x) % 2 : 0; }  // in the pair
};

__device__ inline Keys relative(const Sequence& sequence, int64_t first, int64_t end) {
  return {static_cast<int32_t>(max(first - sequence.start, int64_t{0})),
          static_cast<int32_t>(max(end - sequence.start, int64_t{0}))};
}

// What rows `first` to `last` of a sequence see, all of them or any. Later rows see no fewer keys at the end, and no
// more at the begin.
__device__ inline Keys seen_by_any(const AttendArgs& args, const Sequence& sequence, int32_t first, int32_t last) {
  return relative(sequence, span_of(args, sequence, first).first, span_of(args, sequence, last).end);
}
template <bool kTrees>
__device__ Keys seen_by_all(const AttendArgs& args, const Sequence& sequence, int32_t first, int32_t last) {
  if (kTrees && args.keys.branch_lengths) return relative(sequence, args.window < 0 ? 0 : sequence.end, sequence.end);
  return relative(sequence, span_of(args, sequence, last).first, span_of(args, sequence, first).end);
}

// kTrees: there may be branches.
template <bool kTrees>
__device__ SequenceSize size_of_sequence(const AttendArgs& args, int32_t b) {
  const KeyView& keys = args.keys;
  const int32_t first = read_early(keys.cu_q + b), last = read_early(keys.cu_q + b + 1);
  SequenceSize size{.queries = last - first, .length = read_early(keys.lengths + b)};
  if (kTrees && keys.branch_lengths && first < last) {
    const BranchLengths branches = branch_lengths(keys, first, last);
    size.has_branches = true;
    size.longest = branches.longest;
    size.shortest = branches.shortest;
  }
  return size;
}

// --- split keys

// While the work is planned.
template <int32_t kWarps>
struct Counts {
  int32_t sums[kWarps], longest[kWarps];
  int32_t before[];  // [live + 1] units in the sequences before
};

// Fills counts.before.
template <bool kTrees, int32_t kWarps>
__device__ Line count_units(const AttendArgs& args, const Cut& cut, int32_t live, Counts<kWarps>& counts) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t longest = 0;
  bool has_many_tiles = false;
  const int32_t units = lay_out_line(
      live, counts.sums,
      [&](int32_t b) {
        const SequenceSize size = size_of_sequence<kTrees>(args, b);
        longest = max(longest, keys_of(cut, size).units());
        has_many_tiles |= tiles_of(cut, size) > 1;
        return units_of(cut, size);
      },
      [&](int32_t b, int32_t before) { counts.before[b] = before; });
  longest = __reduce_max_sync(~0u, longest);
  if (lane == 0) counts.longest[warp] = longest;
  has_many_tiles = __syncthreads_or(has_many_tiles);
  for (int32_t w = 0; w < kWarps; ++w) longest = max(longest, counts.longest[w]);
  return {.units = units, .longest = longest, .has_many_tiles = has_many_tiles};
}

// The splits of a worker, one after the other.
struct KeyScheduler {
  WorkPlan plan;
  int32_t unit, end;  // what is left of the worker's, in the line
  int32_t b, before;  // a sequence at or before that of `unit`, and the units before it

  template <class Counts>
  __device__ void begin(const Counts& counts, int32_t live, const WorkPlan& given, int32_t worker) {
    plan = given;
    unit = end = b = before = 0;
    if (worker >= plan.count) return;
    if (plan.splits_each)
      begin_own_splits(counts, worker);
    else
      begin_in_stream(counts, live, worker);
  }

  template <bool kTrees>
  __device__ bool next(const AttendArgs& args, const Cut& cut, Place place, Split& split) {
    while (unit < end)
      if (advance<kTrees>(args, cut, place, split)) return true;
    return false;
  }

 private:
  // Whether the split has keys, and rows in any of the pair's blocks.
  template <bool kTrees>
  __device__ bool advance(const AttendArgs& args, const Cut& cut, Place place, Split& split) {
    SequenceSize size = size_of_sequence<kTrees>(args, b);
    for (int32_t units; before + (units = units_of(cut, size)) <= unit; size = size_of_sequence<kTrees>(args, ++b))
      before += units;
    const Sequence sequence = sequence_at(args.keys, b);
    int32_t tile = 0, begin = before, first_row = sequence.first_row, last_row = sequence.last_row - 1;
    Keys keys = keys_of(cut, size);
    if (!cut.is_one_tile) {
      tile = tile_with(cut, size, unit - before);
      begin += units_before_tile(cut, size, tile);
      keys = keys_of_tile(cut, size, tile);
      first_row += tile * cut.tile_rows / cut.heads;
      last_row = min(last_row, sequence.first_row + ((tile + 1) * cut.tile_rows - 1) / cut.heads);
    }
    const int32_t units = keys.units(), at = unit - begin, count = min(end - unit, units - at);
    unit += count;
    if (!cut.is_one_tile && unit == begin + units) unit = min(end, before + units_through_tile(cut, size, tile));
    if (count <= 0) return false;
    const int32_t packed = size.queries * cut.heads, row_block = tile * place.row_blocks + place.index();
    const int32_t first_worker = plan.splits_each ? b * plan.splits_each : plan.stream_k.worker_of(begin);
    split = {.sequence = sequence,
             .b = b,
             .row_block = row_block,
             .rows = min(packed - row_block * kRows, kRows),
             .loaded = {keys.first, size.has_branches ? keys.end : size.length},
             .branch = size.longest,
             .tile = keys.first_unit() + at,
             .end = keys.first_unit() + at + count,
             .seen_by_all = seen_by_all<kTrees>(args, sequence, first_row, last_row),
             .first_worker = first_worker,
             .num_splits = plan.splits_each ? min(plan.splits_each, units)
                                            : plan.stream_k.worker_of(begin + units - 1) - first_worker + 1};
    return packed > (row_block - place.rank()) * kRows;
  }
  template <class Counts>
  __device__ void begin_own_splits(const Counts& counts, int32_t worker) {
    b = worker / plan.splits_each;
    before = counts.before[b];
    const int32_t units = counts.before[b + 1] - before, sharing = min(plan.splits_each, units),
                  index = worker % plan.splits_each;
    if (index >= sharing) return;
    unit = before + index * units / sharing;
    end = before + (index + 1) * units / sharing;
  }
  template <class Counts>
  __device__ void begin_in_stream(const Counts& counts, int32_t live, int32_t worker) {
    unit = plan.stream_k.begin(worker);
    end = plan.stream_k.begin(worker + 1);
    b = last_that(live, [&](int32_t middle) { return counts.before[middle] <= unit; });
    before = counts.before[b];
  }
};

// --- dealt tiles

// A sequence has places for as many pairs of blocks as its rows may need wherever they begin, so that no sum over
// sequences has to be made: at most one of its places has no rows.
struct RowScheduler {
  int32_t live, round;

  __device__ void begin(int32_t live_count) {
    live = live_count;
    round = 0;
  }

  template <bool kTrees>
  __device__ bool next(const AttendArgs& args, const Cut& cut, Place place, Split& split) {
    if (live == 0) return false;
    const int32_t count = place_of(args, place, live);
    for (;; ++round) {
      const int32_t workers = place.workers(), turn = round % 2 ? workers - 1 - place.worker() : place.worker();
      if (round * workers >= count) return false;
      const int32_t index = round * workers + turn;
      if (index < count && find<kTrees>(args, cut, place, count - 1 - index, split)) break;
    }
    ++round;
    return true;
  }

 private:
  // The first place of sequence b.
  static __device__ int32_t place_of(const AttendArgs& args, Place place, int32_t b) {
    return static_cast<int32_t>(int64_t{read_early(args.keys.cu_q + b)} * args.q.heads / (place.pair * kRows)) + b;
  }

  // Whether there are rows, of a sequence with keys.
  template <bool kTrees>
  __device__ bool find(const AttendArgs& args, const Cut& cut, Place place, int32_t at, Split& split) const {
    const int32_t b = last_that(live, [&](int32_t middle) { return place_of(args, place, middle) <= at; });
    const int32_t first_block = (at - place_of(args, place, b)) * place.pair, heads = args.q.heads;
    const Sequence sequence = sequence_at(args.keys, b);
    const SequenceSize size = size_of_sequence<kTrees>(args, b);
    const int32_t packed = size.queries * heads;
    if (first_block * kRows >= packed || !size.has_keys()) return false;
    const int32_t first_row = sequence.first_row + first_block * kRows / heads;
    const int32_t last_row = sequence.first_row + (min((first_block + place.pair) * kRows, packed) - 1) / heads;
    const Keys seen = size.has_branches ? keys_of(cut, size) : seen_by_any(args, sequence, first_row, last_row);
    const int32_t row_block = first_block + place.index();
    split = {.sequence = sequence,
             .b = b,
             .row_block = row_block,
             .rows = min(packed - row_block * kRows, kRows),
             .loaded = {seen.first, size.has_branches ? seen.end : size.length},
             .branch = size.longest,
             .tile = seen.first_unit(),
             .end = seen.first_unit() + max(1, seen.units()),
             .seen_by_all = seen_by_all<kTrees>(args, sequence, first_row, last_row),
             .first_worker = place.worker(),
             .num_splits = 1};
    return true;
  }
};

}  // namespace quire::attn::cuda::latent
