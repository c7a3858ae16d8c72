// Which rows and keys the thread blocks of latent attention take, one split after the other. (query row, head) pairs of
// a sequence are packed into blocks of 64 rows, and its keys into units of 64.
//
//   few rows    Split-KV. The units of all sequences are one line, shared out among workers; a worker is a group of
//               thread blocks, one for each block of rows, which go through the same keys at the same time. A worker
//               may begin or end inside a sequence; such a split goes to the workspace, and the block that arrives last
//               merges the splits in the order of their keys. The plan is made here from the step's lengths, so a
//               captured graph stays balanced whatever they are.
//   many rows   A split is a block of rows with all keys that they see. Those of a sequence are dealt to the workers
//               from the last to the first, which have the most keys and the fewest, and every second round backwards.
//
// Blocks of a pair (a cluster) have neighbouring blocks of rows and the same keys at the same time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/stream_k_cuda.cuh"

namespace quire::attn::cuda::latent {

constexpr int32_t kRows = kLatentRows, kKeys = kLatentKeys;

// Keys of a sequence, counted from its first. Units are aligned.
struct Keys {
  int32_t first, end;
  __device__ int32_t first_unit() const { return first / kKeys; }
  __device__ int32_t units() const { return end > first ? (end + kKeys - 1) / kKeys - first_unit() : 0; }
};

// Those that any of the sequence's rows sees.
__device__ inline Keys keys_of(const AttendArgs& args, int32_t b) {
  const KeyView& keys = args.keys;
  const int32_t end = keys.lengths[b], queries = keys.cu_q[b + 1] - keys.cu_q[b];
  if (queries == 0) return {0, 0};
  return {args.window < 0 || !keys.causal ? 0 : max(0, end - queries - args.window), end};
}

// A block of rows of one sequence, and which of the keys this thread block takes for it.
struct Split {
  Sequence sequence;
  int32_t b, row_block;
  int32_t rows;                      // of the block; none: what is made is nobody's
  Keys loaded;                       // what lies outside these is not read
  int32_t tile, end;                 // tiles of 64 keys: tile .. end - 1, one at least
  Keys seen_by_all;                  // no row needs a mask there
  int32_t first_worker, num_splits;  // of the whole sequence: one a worker
};

// Who a thread block is: the blocks of a worker go through the same keys. Few rows: a block for each block of rows, as
// many as the sequence with the most queries has. Many rows (row_blocks is 0): one, or a pair.
struct Place {
  int32_t row_blocks, pair;

  __device__ int32_t blocks_each() const { return row_blocks ? row_blocks : pair; }
  __device__ int32_t workers() const { return static_cast<int32_t>(gridDim.x) / blocks_each(); }
  __device__ int32_t worker() const { return static_cast<int32_t>(blockIdx.x) / blocks_each(); }
  __device__ int32_t index() const { return static_cast<int32_t>(blockIdx.x) % blocks_each(); }    // in the worker
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
__device__ inline Keys seen_by_all(const AttendArgs& args, const Sequence& sequence, int32_t first, int32_t last) {
  return relative(sequence, span_of(args, sequence, last).first, span_of(args, sequence, first).end);
}

// --- few rows

// While the work is planned.
template <int32_t kWarps>
struct Counts {
  int32_t sums[kWarps], longest[kWarps];
  int32_t before[];  // [live + 1] units in the sequences before
};

// Fills counts.before; returns the units of the longest sequence.
template <int32_t kWarps>
__device__ int32_t count_units(const AttendArgs& args, int32_t live, Counts<kWarps>& counts) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t carry = 0, longest = 0;
  for (int32_t first = 0; first <= live; first += kWarps * kWarp) {
    const int32_t b = first + static_cast<int32_t>(threadIdx.x);
    const int32_t own = b < live ? keys_of(args, b).units() : 0;
    longest = max(longest, own);
    int32_t total;
    const int32_t before = carry + sum_before(own, counts.sums, total);
    if (b <= live) counts.before[b] = before;
    carry += total;
    __syncthreads();
  }
  longest = __reduce_max_sync(~0u, longest);
  if (lane == 0) counts.longest[warp] = longest;
  __syncthreads();
  for (int32_t w = 0; w < kWarps; ++w) longest = max(longest, counts.longest[w]);
  return longest;
}

// Either all units are one line, of which the workers have equal stretches (stream-K), or each sequence has as many
// workers of its own, which share its units.
struct WorkPlan {
  int32_t count;        // of workers
  int32_t splits_each;  // of each sequence; 0: stream-K
  StreamK stream_k;
};

// A split that others finish costs time: its sums are as many bytes as 64 keys and more. So the splits of a sequence
// are at least as long as they are many, and stream-K is taken only where it ends clearly sooner than workers of the
// sequences' own.
__device__ inline WorkPlan plan_work(int32_t total, int32_t longest, int32_t live, int32_t most, int32_t split_rows) {
  constexpr int32_t kSplitCost = 4;  // units that storing and merging a split take
  if (total == 0) return {};
  const auto least = static_cast<int32_t>(ceilf(sqrtf(static_cast<float>(longest) * split_rows / kRows)));
  const StreamK stream_k = StreamK::of(total, min(most, max(1, total / least)));
  const int32_t splits_each = stream_k.count / live;
  if (splits_each > 0 && (longest + splits_each - 1) / splits_each <= stream_k.each + kSplitCost)
    return {.count = splits_each * live, .splits_each = splits_each, .stream_k = {}};
  return {.count = stream_k.count, .splits_each = 0, .stream_k = stream_k};
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

  __device__ bool next(const AttendArgs& args, Place place, Split& split) {
    while (unit < end)
      if (advance(args, place, split)) return true;
    return false;
  }

 private:
  // Whether the sequence has rows in any of the pair's blocks.
  __device__ bool advance(const AttendArgs& args, Place place, Split& split) {
    Keys keys = keys_of(args, b);
    for (; before + keys.units() <= unit; keys = keys_of(args, ++b)) before += keys.units();
    const Sequence sequence = sequence_at(args.keys, b);
    const int32_t packed = (sequence.last_row - sequence.first_row) * args.q.heads;
    const int32_t units = keys.units(), at = unit - before, count = min(end - unit, units - at);
    const int32_t first_worker = plan.splits_each ? b * plan.splits_each : plan.stream_k.worker_of(before);
    unit += count;
    split = {.sequence = sequence,
             .b = b,
             .row_block = place.index(),
             .rows = min(packed - place.index() * kRows, kRows),
             .loaded = keys,
             .tile = keys.first_unit() + at,
             .end = keys.first_unit() + at + count,
             .seen_by_all = seen_by_all(args, sequence, sequence.first_row, sequence.last_row - 1),
             .first_worker = first_worker,
             .num_splits = plan.splits_each ? min(plan.splits_each, units)
                                            : plan.stream_k.worker_of(before + units - 1) - first_worker + 1};
    return packed > (place.index() - place.rank()) * kRows;
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

// --- many rows

// A sequence has places for as many pairs of blocks as its rows may need wherever they begin, so that no sum over
// sequences has to be made: at most one of its places has no rows.
struct RowScheduler {
  int32_t live, round;

  __device__ void begin(int32_t live_count) {
    live = live_count;
    round = 0;
  }

  __device__ bool next(const AttendArgs& args, Place place, Split& split) {
    if (live == 0) return false;
    const int32_t count = place_of(args, place, live);
    for (;; ++round) {
      const int32_t workers = place.workers(), turn = round % 2 ? workers - 1 - place.worker() : place.worker();
      if (round * workers >= count) return false;
      const int32_t index = round * workers + turn;
      if (index < count && find(args, place, count - 1 - index, split)) break;
    }
    ++round;
    return true;
  }

 private:
  // The first place of sequence b.
  static __device__ int32_t place_of(const AttendArgs& args, Place place, int32_t b) {
    return static_cast<int32_t>(int64_t{args.keys.cu_q[b]} * args.q.heads / (place.pair * kRows)) + b;
  }

  // Whether there are rows, of a sequence with keys.
  __device__ bool find(const AttendArgs& args, Place place, int32_t at, Split& split) const {
    const int32_t b = last_that(live, [&](int32_t middle) { return place_of(args, place, middle) <= at; });
    const int32_t first_block = (at - place_of(args, place, b)) * place.pair, heads = args.q.heads;
    const Sequence sequence = sequence_at(args.keys, b);
    const int32_t packed = (sequence.last_row - sequence.first_row) * heads;
    if (first_block * kRows >= packed || keys_of(args, b).units() == 0) return false;
    const int32_t first_row = sequence.first_row + first_block * kRows / heads;
    const int32_t last_row = sequence.first_row + (min((first_block + place.pair) * kRows, packed) - 1) / heads;
    const Keys seen = seen_by_any(args, sequence, first_row, last_row);
    const int32_t row_block = first_block + place.index();
    split = {.sequence = sequence,
             .b = b,
             .row_block = row_block,
             .rows = min(packed - row_block * kRows, kRows),
             .loaded = {seen.first, args.keys.lengths[b]},
             .tile = seen.first_unit(),
             .end = seen.first_unit() + max(1, seen.units()),
             .seen_by_all = seen_by_all(args, sequence, first_row, last_row),
             .first_worker = place.worker(),
             .num_splits = 1};
    return true;
  }
};

}  // namespace quire::attn::cuda::latent
