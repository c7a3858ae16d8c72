// Few queries of each sequence over latent keys (MLA, absorbed): one kv head for all heads, a row of 576 columns whose
// first 512 are the value, bf16 or f16. With 128 heads a key is used 128 times, so the products of Hopper's warpgroups
// count as much as the memory.
//
// (query row, head) pairs of a sequence are packed into blocks of 64 rows. The work is one line of units, 64 keys of a
// sequence each, cut into runs; a run is taken by a group of thread blocks, one for each block of rows, which go
// through the same keys at the same time, so that all but one find them in the cache. The cut is made here from the
// step's lengths, so a captured graph stays balanced whatever they are. A run may begin or end inside a sequence; such
// a part goes to the workspace, and the block that arrives last merges the parts in the order of their keys.
//
// In a thread block a warpgroup loads keys into two stages, by boxes of the copy engine or, when pages are smaller than
// the least box, row by row. The sums of 64 x 512 fill half of all registers, so two warpgroups have a half of the
// columns each:
//
//   leader     S = Q K^T of 64 keys, softmax, weights to shared memory      out[:, :256] += weights V[:, :256]
//   follower                             waits for the weights              out[:, 256:] += weights V[:, 256:]
//
// V is what K is: the same shared memory, whose lines are the dimension that is summed over.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/hopper.cuh"
#include "attn/runs_cuda.cuh"
#include "attn/tensor_core_cuda.cuh"
#include "attn/tensor_map.h"

namespace quire::attn::cuda {
namespace {

using namespace hopper;

constexpr int32_t kKeyDim = kLatentKeyDim, kValueDim = kLatentValueDim;
constexpr int32_t kRows = kLatentRows, kKeys = kLatentKeys;  // of a product
constexpr int32_t kPanelBytes = kKeys * kLineBytes, kPanels = kKeyDim / kPanelColumns;
constexpr int32_t kTileBytes = kPanels * kPanelBytes;  // 64 rows of queries, or 64 keys
static_assert(kRows == kKeys, "queries and keys have tiles of one size");
constexpr int32_t kStages = 2;
constexpr int32_t kColumns = kValueDim / 2;  // of values, for each of the two warpgroups that multiply
constexpr int32_t kPieces = kLineBytes / 16;

constexpr int32_t kThreads = 3 * kWarpgroup, kWarps = kThreads / kWarp;
constexpr int32_t kMultiplying = 2 * kWarpgroup;  // threads of the leader and the follower
constexpr int32_t kLoadRegisters = 40, kMultiplyRegisters = 232;
static_assert(kLoadRegisters + 2 * kMultiplyRegisters <= 65536 / kThreads / 8 * 8 * 3, "more registers than there are");

// Named barriers; the last two are one for each multiplying warpgroup.
enum : int32_t { kWeightsFree = 1, kWeightsReady, kMeeting, kOwn };

struct Latent {
  AttendArgs args;
  CUtensorMap map;     // of the keys, in boxes; not used when they are gathered
  int32_t box;         // slots that one copy brings; 0: gathered
  int32_t row_blocks;  // of a sequence with the most queries
  int32_t part_rows;   // room for each part in the workspace
  float* split_out;    // [2 * thread blocks, part_rows, kValueDim]
  float* split_top;    // [2 * thread blocks, part_rows]
  float* split_sum;
  int32_t* arrivals;  // [sequences, arrival_stride], a column for each block of rows
  int32_t arrival_stride;
};

// --- how the work is cut

// While the work is cut, in place of the first keys.
struct Counts {
  int32_t sums[kWarps], longest[kWarps];
  int32_t before[];  // [live + 1] units in the sequences before
};
static_assert(sizeof(Counts) + (kLatentMostSequences + 1) * sizeof(int32_t) <= kStages * kTileBytes);

// Keys of a sequence that any of its rows sees, counted from the sequence's first key. Units are aligned.
struct Keys {
  int32_t first, end;
  __device__ int32_t first_unit() const { return first / kKeys; }
  __device__ int32_t units() const { return end > first ? (end + kKeys - 1) / kKeys - first_unit() : 0; }
};

__device__ Keys keys_of(const AttendArgs& args, int32_t b) {
  const KeyView& keys = args.keys;
  const int32_t end = keys.lengths[b], queries = keys.cu_q[b + 1] - keys.cu_q[b];
  if (queries == 0) return {0, 0};
  return {args.window < 0 || !keys.causal ? 0 : max(0, end - queries - args.window), end};
}

// Fills counts.before; returns the units of the longest sequence.
__device__ int32_t count_units(const AttendArgs& args, int32_t live, Counts& counts) {
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int32_t carry = 0, longest = 0;
  for (int32_t first = 0; first <= live; first += kThreads) {
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

// Either all units are one line, cut into equal runs, or each sequence has as many runs of its own, which share its
// units.
struct Cut {
  int32_t count;  // of runs
  int32_t own;    // of each sequence; 0: the line is cut
  Runs line;
};

// A part that others finish is dear: its sums are as many bytes as 64 keys and more. So the parts of a sequence are at
// least as long as they are many, and the line is cut only where that ends clearly sooner than runs of the sequences'
// own.
__device__ Cut cut(int32_t total, int32_t longest, int32_t live, int32_t most, int32_t part_rows) {
  constexpr int32_t kDear = 4;  // units that leaving and merging a part take
  if (total == 0) return {};
  const auto least = static_cast<int32_t>(ceilf(sqrtf(static_cast<float>(longest) * part_rows / kRows)));
  const Runs line = Runs::of(total, min(most, max(1, total / least)));
  const int32_t own = line.count / live;
  if (own > 0 && (longest + own - 1) / own <= line.each + kDear) return {.count = own * live, .own = own, .line = {}};
  return {.count = line.count, .own = 0, .line = line};
}

// Units of one sequence, for one block of its rows.
struct Part {
  Sequence sequence;
  int32_t b, rows;          // rows of the block; none: nothing to do
  Keys keys;                // of the whole sequence
  int32_t tile, end;        // tiles of 64 keys: tile .. end - 1
  int32_t first_run, runs;  // of the whole sequence, each with a part of it
};

// The parts of a run, one after the other.
struct Walk {
  Cut runs;
  int32_t unit, end;  // what is left of the run, in the line
  int32_t b, before;  // a sequence at or before that of `unit`, and the units before it

  __device__ Walk(const Counts& counts, int32_t live, const Cut& given, int32_t run)
      : runs(given), unit(0), end(0), b(0), before(0) {
    if (run >= runs.count) return;
    if (runs.own)
      begin_own(counts, run);
    else
      begin_in_line(counts, live, run);
  }

  __device__ bool over() const { return unit >= end; }
  __device__ Part next(const Latent& d, int32_t row_block) {
    Keys keys = keys_of(d.args, b);
    for (; before + keys.units() <= unit; keys = keys_of(d.args, ++b)) before += keys.units();
    const Sequence sequence = sequence_at(d.args.keys, b);
    const int32_t packed = (sequence.last_row - sequence.first_row) * d.args.q.heads;
    const int32_t units = keys.units(), at = unit - before, count = min(end - unit, units - at);
    const int32_t first_run = runs.own ? b * runs.own : runs.line.run_of(before);
    unit += count;
    return {.sequence = sequence,
            .b = b,
            .rows = min(packed - row_block * kRows, kRows),
            .keys = keys,
            .tile = keys.first_unit() + at,
            .end = keys.first_unit() + at + count,
            .first_run = first_run,
            .runs = runs.own ? min(runs.own, units) : runs.line.run_of(before + units - 1) - first_run + 1};
  }

 private:
  __device__ void begin_own(const Counts& counts, int32_t run) {
    b = run / runs.own;
    before = counts.before[b];
    const int32_t units = counts.before[b + 1] - before, sharing = min(runs.own, units), index = run % runs.own;
    if (index >= sharing) return;
    unit = before + index * units / sharing;
    end = before + (index + 1) * units / sharing;
  }
  __device__ void begin_in_line(const Counts& counts, int32_t live, int32_t run) {
    unit = runs.line.begin(run);
    end = runs.line.begin(run + 1);
    b = last_that(live, [&](int32_t middle) { return counts.before[middle] <= unit; });
    before = counts.before[b];
  }
};

// --- the thread block

struct alignas(1024) Shared {
  std::byte queries[kTileBytes];
  std::byte keys[kStages][kTileBytes];
  std::byte weights[kPanelBytes];
  Barrier full[kStages], free[kStages];
  float shrink[kRows];  // of a row's sums before this tile's weights are added
  float top[kRows], sum[kRows];
  bool is_last;
  Walk walk;  // of the threads that multiply: they have no registers to spare
  Part part;
  bool has_part;
};

// What a thread block knows of its work.
struct Job {
  const Latent& d;
  Shared& shared;
  int32_t run, row_block;
};

// --- loading keys

__device__ int32_t look_up(const KeyView& keys, const Part& part, int32_t key) {
  return slot_in_pages(part.sequence.pages, keys.page_size.shift(), key);
}

// By one warp. Boxes without a key that a row sees are left out; a box never leaves its page. Table entries are asked
// for before the stage is free: they may come from far away.
__device__ void load_boxes(const Job& job, const Part& part, int32_t tile, Turn turn) {
  const Latent& d = job.d;
  const int32_t lane = threadIdx.x, boxes = kKeys / d.box;
  const int32_t key = tile * kKeys + lane % boxes * d.box;
  const bool exists = key + d.box > part.keys.first && key < part.keys.end;
  const int32_t slot = exists ? look_up(d.args.keys, part, key) : -1;
  const int32_t existing = __popc(__ballot_sync(~0u, exists && lane < boxes));
  Barrier* const full = &job.shared.full[turn.stage];
  wait(&job.shared.free[turn.stage], turn.phase ^ 1);
  if (lane == 0) arrive_expecting(full, existing * d.box * kLineBytes * kPanels);
  __syncwarp();
  const uint32_t to = shared_address(job.shared.keys[turn.stage]);
  for (int32_t first = 0; first < boxes * kPanels; first += kWarp) {
    const int32_t box = (first + lane) / kPanels, panel = (first + lane) % kPanels;
    const int32_t from = __shfl_sync(~0u, slot, box);
    if (box < boxes && from >= 0)
      copy_box(to + panel * kPanelBytes + box * d.box * kLineBytes, &d.map, full, panel * kPanelColumns, 0, from);
  }
}

// By the warpgroup, eight threads for each row: rows that no query sees are left out.
__device__ void gather(const Job& job, const Part& part, int32_t tile, Turn turn) {
  constexpr int32_t kAtOnce = kWarpgroup / kPieces;
  const kv::LayerKv& kv = job.d.args.kv;
  const int32_t piece = threadIdx.x % kPieces, line = threadIdx.x / kPieces;
  int32_t slots[kKeys / kAtOnce];
#pragma unroll
  for (int32_t i = 0; i < kKeys / kAtOnce; ++i) {
    const int32_t key = tile * kKeys + line + i * kAtOnce;
    slots[i] = key >= part.keys.first && key < part.keys.end ? look_up(job.d.args.keys, part, key) : -1;
  }
  wait(&job.shared.free[turn.stage], turn.phase ^ 1);
  const uint32_t to = shared_address(job.shared.keys[turn.stage]);
#pragma unroll
  for (int32_t i = 0; i < kKeys / kAtOnce; ++i) {
    if (slots[i] < 0) continue;
    const std::byte* from = kv.keys + slots[i] * kv.key_stride * 2 + piece * 16;
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
      copy_async(piece_at(to + panel * kPanelBytes, line + i * kAtOnce, piece), from + panel * kLineBytes, true);
  }
  arrive_with_copies(&job.shared.full[turn.stage]);
}

__device__ void load_keys(const Job& job, Walk walk) {
  const bool gathers = job.d.box == 0;
  if (!gathers && threadIdx.x >= kWarp) return;
  Turn turn;
  while (!walk.over()) {
    const Part part = walk.next(job.d, job.row_block);
    if (part.rows <= 0) continue;
    for (int32_t tile = part.tile; tile < part.end; ++tile, turn.next(kStages))
      if (gathers)
        gather(job, part, tile, turn);
      else
        load_boxes(job, part, tile, turn);
  }
  wait_for_all_copies();
}

// --- the threads that multiply

// A thread has two rows of the tile (row_of) and, of each eight columns, two.
__device__ int32_t lane_of() { return threadIdx.x % kWarp; }
__device__ uint32_t multiplying_thread() { return threadIdx.x - kWarpgroup; }
__device__ int32_t half_of_columns() { return multiplying_thread() / kWarpgroup; }
__device__ bool is_leader() { return half_of_columns() == 0; }
__device__ int32_t row_of(int32_t half) { return threadIdx.x % kWarpgroup / kWarp * 16 + lane_of() / 4 + half * 8; }

// Query row and head of a tile's row; row < 0: none.
struct Row {
  int32_t row, head;
};
__device__ Row row_at(const Job& job, const Part& part, int32_t index) {
  const int32_t packed = job.row_block * kRows + index, heads = job.d.args.q.heads;
  return {index < part.rows ? part.sequence.first_row + packed / heads : -1, packed % heads};
}

__device__ void load_queries(const Job& job, const Part& part) {
  const ConstHeadRows& q = job.d.args.q;
  const uint32_t to = shared_address(job.shared.queries);
  const int32_t piece = multiplying_thread() % kPieces;
  for (int32_t line = multiplying_thread() / kPieces; line < kRows; line += kMultiplying / kPieces) {
    const Row row = row_at(job, part, line);
    const bool exists = row.row >= 0;
    const std::byte* from = q.data + (exists ? (row.row * q.row_stride + row.head * kKeyDim) * 2 + piece * 16 : 0);
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
      copy_async(piece_at(to + panel * kPanelBytes, line, piece), from + (exists ? panel * kLineBytes : 0), exists);
  }
  wait_for_all_copies();
  fence_async();
  meet_warps(kMeeting, kMultiplying);
}

// Values that no row sees become zeros, each warpgroup's own columns: what lies there may be NaN, and 0 times that is
// NaN. Scores of such keys may be anything.
__device__ void clear_unseen(const Job& job, const Part& part, int32_t tile, int32_t stage) {
  constexpr int32_t kOwnPanels = kColumns / kPanelColumns, kLinePieces = kOwnPanels * kPieces;
  const int32_t first = part.keys.first - tile * kKeys, end = part.keys.end - tile * kKeys;
  if (first <= 0 && end >= kKeys) return;
  std::byte* const own = job.shared.keys[stage] + half_of_columns() * kOwnPanels * kPanelBytes;
#pragma unroll 1
  for (int32_t i = threadIdx.x % kWarpgroup; i < kKeys * kLinePieces; i += kWarpgroup) {
    const int32_t line = i / kLinePieces, panel = i % kLinePieces / kPieces;
    if (line >= first && line < end) continue;
    *reinterpret_cast<uint4*>(own + piece_at(panel * kPanelBytes, line, i % kPieces)) = {0, 0, 0, 0};
  }
  fence_async();
  meet_warps(kOwn + half_of_columns(), kWarpgroup);
}

__device__ void take_keys(const Job& job, const Part& part, int32_t tile, Turn turn) {
  wait(&job.shared.full[turn.stage], turn.phase);
  if (job.d.box == 0) fence_async();  // what was gathered did not come by the copy engine
  clear_unseen(job, part, tile, turn.stage);
}

__device__ void give_back(const Job& job, Turn turn) {
  if (lane_of() == 0) arrive(&job.shared.free[turn.stage]);
}

template <class T>
__device__ void multiply_queries(const Job& job, int32_t stage, float (&scores)[kKeys / 2]) {
  constexpr int32_t kSteps = kKeyDim / 16, kOfPanel = kPanelColumns / 16;
  const uint64_t queries = operand(shared_address(job.shared.queries));
  const uint64_t keys = operand(shared_address(job.shared.keys[stage]));
  fence_products();
#pragma unroll
  for (int32_t step = 0; step < kSteps; ++step) {
    const int32_t at = step / kOfPanel * kPanelBytes + step % kOfPanel * 32;
    multiply_keys<T, kKeys>(scores, further(queries, at), further(keys, at), step > 0);
  }
  commit_products();
}

using Out = float[kColumns / 2];

template <class T>
__device__ void multiply_weights(const Job& job, int32_t stage, Out& out) {
  const uint64_t weights = operand(shared_address(job.shared.weights));
  const uint64_t values = operand(
      shared_address(job.shared.keys[stage]) + half_of_columns() * kColumns / kPanelColumns * kPanelBytes, kPanelBytes);
  fence_products();
#pragma unroll
  for (int32_t step = 0; step < kKeys / 16; ++step)
    multiply_shared_values<T>(out, further(weights, step * 32), further(values, step * 16 * kLineBytes), 1);
  commit_products();
}

__device__ void shrink_rows(Out& out, const float (&shrink)[2]) {
  if (__all_sync(~0u, shrink[0] == 1 && shrink[1] == 1)) return;
#pragma unroll
  for (int32_t i = 0; i < kColumns / 2; ++i) out[i] *= shrink[i / 2 % 2];
}

// --- the leader's softmax

// Of the thread's two rows.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};  // in powers of two
  float sum[2] = {0, 0};                  // of this thread's columns alone until the end
};

// Keys [first, end) that the thread's two rows see, counted from the sequence's first.
struct Seen {
  int32_t first[2], end[2];
};
__device__ Seen seen_by(const Job& job, const Part& part) {
  Seen seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, part, row_of(half));
    const Span span = row.row < 0 ? Span{0, 0} : span_of(job.d.args, part.sequence, row.row);
    seen.first[half] = static_cast<int32_t>(max(span.first - part.sequence.start, int64_t{0}));
    seen.end[half] = static_cast<int32_t>(max(span.end - part.sequence.start, int64_t{0}));
  }
  return seen;
}

// Scores as powers of two; of keys that a row does not see, -inf.
__device__ void scale_scores(const AttendArgs& args, const Seen& seen, int32_t first_key, float (&scores)[kKeys / 2]) {
  const float scale = args.scale * args.kv.key_scale;
  if (args.softcap > 0) {
#pragma unroll
    for (float& x : scores) x = args.softcap * kLog2e * tanhf(x * scale / args.softcap);
  } else {
#pragma unroll
    for (float& x : scores) x *= scale * kLog2e;
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    if (first_key >= seen.first[half] && first_key + kKeys <= seen.end[half]) continue;
#pragma unroll
    for (int32_t i = 0; i < kKeys / 4; ++i) {
      const int32_t key = first_key + i / 2 * 8 + lane_of() % 4 * 2 + i % 2;
      if (key < seen.first[half] || key >= seen.end[half]) scores[i / 2 * 4 + half * 2 + i % 2] = -INFINITY;
    }
  }
}

// Scores become weights; shrink: what the rows' sums before them are multiplied by.
__device__ void fold_scores(Softmax& softmax, float (&scores)[kKeys / 2], float (&shrink)[2]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const auto score = [&](int32_t i) -> float& { return scores[i / 2 * 4 + half * 2 + i % 2]; };
    float top = score(0);
#pragma unroll
    for (int32_t i = 1; i < kKeys / 4; ++i) top = fmaxf(top, score(i));
    top = fmaxf(softmax.top[half], quad_max(top));
    const float base = top == -INFINITY ? 0 : top;
    shrink[half] = power_of_two(softmax.top[half] - base);
    softmax.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < kKeys / 4; ++i) {
      score(i) = power_of_two(score(i) - base);
      sum += score(i);
    }
    softmax.sum[half] = softmax.sum[half] * shrink[half] + sum;
  }
}

// Weights and what the rows shrink by, for both warpgroups. A store has two pieces of each of the warp's 16 lines.
template <class T>
__device__ void hand_over(const Job& job, const float (&weights)[kKeys / 2], const float (&shrink)[2]) {
  const int32_t lane = lane_of(), line = threadIdx.x % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
  for (int32_t n = 0; n < kKeys / 8; n += 2) {
    const float* const w = weights + 4 * n;
    store_matrices(piece_at(shared_address(job.shared.weights), line, n + lane / 16),
                   {pair<T>(w[0], w[1]), pair<T>(w[2], w[3]), pair<T>(w[4], w[5]), pair<T>(w[6], w[7])});
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half)
    if (lane % 4 == 0) job.shared.shrink[row_of(half)] = shrink[half];
  fence_async();
}

// The scores of the next tile are begun behind the values of this one, so that the products have a gap only where the
// softmax is. If the next tile is late, this one's stage is free for another before it comes.
template <class T>
__device__ void lead(const Job& job, const Part& part, Turn& turn, Out& out) {
  const Seen seen = seen_by(job, part);
  Softmax softmax;
  float scores[kKeys / 2];
  take_keys(job, part, part.tile, turn);
  multiply_queries<T>(job, turn.stage, scores);
  wait_for_products<0>();
  for (int32_t tile = part.tile;; ++tile) {
    float shrink[2];
    scale_scores(job.d.args, seen, tile * kKeys, scores);
    fold_scores(softmax, scores, shrink);
    meet_warps(kWeightsFree, kMultiplying);
    hand_over<T>(job, scores, shrink);
    meet_warps(kWeightsReady, kMultiplying);
    shrink_rows(out, shrink);
    multiply_weights<T>(job, turn.stage, out);
    const Turn used = turn;
    turn.next(kStages);
    const bool goes_on = tile + 1 < part.end, overlaps = goes_on && is_over(&job.shared.full[turn.stage], turn.phase);
    if (!overlaps) {
      wait_for_products<0>();
      give_back(job, used);
    }
    if (!goes_on) break;
    take_keys(job, part, tile + 1, turn);
    multiply_queries<T>(job, turn.stage, scores);
    if (overlaps) {
      wait_for_products<1>();
      give_back(job, used);
    }
    wait_for_products<0>();
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[half]);
    if (lane_of() % 4 == 0) {
      job.shared.top[row_of(half)] = softmax.top[half];
      job.shared.sum[row_of(half)] = sum;
    }
  }
}

template <class T>
__device__ void follow(const Job& job, const Part& part, Turn& turn, Out& out) {
  for (int32_t tile = part.tile; tile < part.end; ++tile, turn.next(kStages)) {
    take_keys(job, part, tile, turn);
    arrive_named(kWeightsFree, kMultiplying);
    meet_warps(kWeightsReady, kMultiplying);
    const float shrink[2] = {job.shared.shrink[row_of(0)], job.shared.shrink[row_of(1)]};
    shrink_rows(out, shrink);
    multiply_weights<T>(job, turn.stage, out);
    wait_for_products<0>();
    give_back(job, turn);
  }
}

// --- what becomes of a part's sums

// Of the thread's two rows: sums of weighted values are relative to 2^top.
struct Ends {
  float top[2], sum[2];
};

__device__ void store_pair(Dtype type, std::byte* array, int64_t index, float2 both) {
  switch (type) {
    case Dtype::bf16:
      *reinterpret_cast<uint32_t*>(array + index * 2) = pair<__nv_bfloat16>(both.x, both.y);
      break;
    case Dtype::f16:
      *reinterpret_cast<uint32_t*>(array + index * 2) = pair<__half>(both.x, both.y);
      break;
    default:
      *reinterpret_cast<float2*>(array + index * 4) = both;
  }
}

// The first of the thread's columns; the others follow at distances of eight.
__device__ int32_t first_column() { return half_of_columns() * kColumns + lane_of() % 4 * 2; }

__device__ void write_rows(const Job& job, const Part& part, const Ends& ends, const Out& out) {
  const AttendArgs& args = job.d.args;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, part, row_of(half));
    if (row.row < 0) continue;
    const float top = ends.top[half] * kLn2, sum = ends.sum[half];
    const float factor = factor_of(top, sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
    const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * kValueDim + first_column();
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n)
      store_pair(args.out.type, args.out.data, at + n * 8,
                 {out[4 * n + 2 * half] * factor, out[4 * n + 2 * half + 1] * factor});
    if (args.lse && is_leader() && lane_of() % 4 == 0)
      args.lse[row.head * args.q.rows + row.row] = top == -INFINITY ? -INFINITY : top + logf(sum);
  }
}

// Where a part of the sequence and block of rows lies, counted from the first. A thread block leaves at most two: one
// of a sequence that earlier ones have the begin of, one of a sequence that later ones have the rest of.
__device__ int64_t slot_of_part(const Job& job, const Part& part, int32_t index) {
  return 2 * (int64_t{part.first_run + index} * job.d.row_blocks + job.row_block) + (index == 0 ? 1 : 0);
}

// The thread's columns of a row of the workspace.
__device__ float2* sums_at(const Latent& d, int64_t row) {
  return reinterpret_cast<float2*>(d.split_out + row * kValueDim + first_column());
}

__device__ void leave_part(const Job& job, const Part& part, const Ends& ends, const Out& out) {
  const int64_t slot = slot_of_part(job, part, job.run - part.first_run);
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    if (row_of(half) >= part.rows) continue;
    const int64_t row = slot * job.d.part_rows + row_of(half);
    float2* const to = sums_at(job.d, row);
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n) __stcg(to + n * 4, {out[4 * n + 2 * half], out[4 * n + 2 * half + 1]});
    if (is_leader() && lane_of() % 4 == 0) {
      __stcg(job.d.split_top + row, ends.top[half]);
      __stcg(job.d.split_sum + row, ends.sum[half]);
    }
  }
}

// Whether this thread block's part is the last of its sequence to arrive. The count wraps: the next layer finds it at
// zero. That one thread releases and acquires is enough: what the others wrote or will read is ordered with it by the
// barriers.
__device__ bool arrive_last(const Job& job, const Part& part) {
  meet_warps(kMeeting, kMultiplying);
  if (multiplying_thread() == 0) {
    int32_t* const arrivals = job.d.arrivals + int64_t{part.b} * job.d.arrival_stride + job.row_block;
    job.shared.is_last = count_arrival(arrivals, part.runs - 1) == part.runs - 1;
  }
  meet_warps(kMeeting, kMultiplying);
  return job.shared.is_last;
}

// Into the registers of the threads that would have had the sums alone.
__device__ void merge_parts(const Job& job, const Part& part, Ends& ends, Out& out) {
  const Latent& d = job.d;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = min(row_of(half), part.rows - 1);  // rows past the last repeat it, and are not written
    const auto at = [&](int32_t p) { return slot_of_part(job, part, p) * d.part_rows + row; };
    float top = -INFINITY, sum = 0;
    for (int32_t p = 0; p < part.runs; ++p) top = fmaxf(top, __ldcg(d.split_top + at(p)));
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n) out[4 * n + 2 * half] = out[4 * n + 2 * half + 1] = 0;
    for (int32_t p = 0; p < part.runs; ++p) {
      const float share = top == -INFINITY ? 0 : power_of_two(__ldcg(d.split_top + at(p)) - top);
      sum += share * __ldcg(d.split_sum + at(p));
      const float2* const from = sums_at(d, at(p));
#pragma unroll
      for (int32_t n = 0; n < kColumns / 8; ++n) {
        const float2 both = __ldcg(from + n * 4);
        out[4 * n + 2 * half] += share * both.x;
        out[4 * n + 2 * half + 1] += share * both.y;
      }
    }
    ends.top[half] = top;
    ends.sum[half] = sum;
  }
}

__device__ void finish_part(const Job& job, const Part& part, Out& out) {
  meet_warps(kMeeting, kMultiplying);
  Ends ends{{job.shared.top[row_of(0)], job.shared.top[row_of(1)]},
            {job.shared.sum[row_of(0)], job.shared.sum[row_of(1)]}};
  if (part.runs > 1) {
    leave_part(job, part, ends, out);
    if (!arrive_last(job, part)) return;
    merge_parts(job, part, ends, out);
  }
  write_rows(job, part, ends, out);
}

// Goes to the next part that has rows; false: there is none.
__device__ bool next_part(const Job& job) {
  Shared& shared = job.shared;
  meet_warps(kMeeting, kMultiplying);  // nobody needs the last one any more
  if (multiplying_thread() == 0) {
    shared.has_part = false;
    while (!shared.has_part && !shared.walk.over()) {
      shared.part = shared.walk.next(job.d, job.row_block);
      shared.has_part = shared.part.rows > 0;
    }
  }
  meet_warps(kMeeting, kMultiplying);
  return shared.has_part;
}

template <class T>
__device__ void multiply_parts(const Job& job) {
  const Part& part = job.shared.part;
  Turn turn;
  while (next_part(job)) {
    load_queries(job, part);
    Out out = {};
    if (is_leader())
      lead<T>(job, part, turn, out);
    else
      follow<T>(job, part, turn, out);
    finish_part(job, part, out);
  }
}

// Rows of sequences without keys, and rows past the live ones.
__device__ void write_empty_rows(const AttendArgs& args) {
  const int32_t live = *args.keys.live, live_rows = live ? args.keys.cu_q[live] : 0;
  const auto write_empty = [&](int32_t first, int32_t last) {
    for (int64_t row = first; row < last; ++row) write_empty_row(args, row, multiplying_thread(), kMultiplying);
  };
  for (int32_t b = blockIdx.x; b < live; b += gridDim.x)
    if (keys_of(args, b).units() == 0) write_empty(args.keys.cu_q[b], args.keys.cu_q[b + 1]);
  for (int32_t row = live_rows + blockIdx.x; row < args.q.rows; row += gridDim.x) write_empty(row, row + 1);
}

// --- the kernel

__device__ void init_barriers(const Latent& d, Shared& shared) {
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < kStages; ++stage) {
      init_barrier(&shared.full[stage], d.box == 0 ? kWarpgroup : 1);
      init_barrier(&shared.free[stage], kMultiplying / kWarp);
    }
    if (d.box > 0) prefetch_map(&d.map);
  }
}

template <class T>
__device__ void attend_block(const Latent& d, Shared& shared) {
  const int32_t live = *d.args.keys.live;
  Counts& counts = *reinterpret_cast<Counts*>(shared.keys);
  init_barriers(d, shared);
  const int32_t longest = count_units(d.args, live, counts), total = counts.before[live];
  const int32_t most = static_cast<int32_t>(gridDim.x) / d.row_blocks;
  const Job job{.d = d,
                .shared = shared,
                .run = static_cast<int32_t>(blockIdx.x) / d.row_blocks,
                .row_block = static_cast<int32_t>(blockIdx.x) % d.row_blocks};
  const Walk walk(counts, live, cut(total, longest, live, most, d.part_rows), job.run);
  if (threadIdx.x == 0) shared.walk = walk;
  fence_async();    // the barriers are there, and nobody writes counts any more
  __syncthreads();  // nor reads them: their place is the keys'
  if (threadIdx.x < kWarpgroup) {
    give_registers<kLoadRegisters>();
    load_keys(job, walk);
  } else {
    take_registers<kMultiplyRegisters>();
    multiply_parts<T>(job);
    write_empty_rows(d.args);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) latent_kernel(const __grid_constant__ Latent d) {
  if (!QUIRE_HOPPER) return;
  extern __shared__ __align__(1024) std::byte memory[];
  attend_block<T>(d, *reinterpret_cast<Shared*>(memory));
}

template <class T>
void launch(const Latent& d, int32_t blocks, cudaStream_t stream) {
  const auto kernel = latent_kernel<T>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
             "attention needs ", sizeof(Shared), " bytes of shared memory");
  kernel<<<blocks, kThreads, sizeof(Shared), stream>>>(d);
  check_cuda(cudaGetLastError(), "attention was not launched");
}

}  // namespace

void latent_decode(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const MetadataArena& arena = *args.arena;
  const Latent d{.args = args,
                 .map = choice.box == 0 ? CUtensorMap{} : tensor_map(args.kv, Rows::keys, choice.box),
                 .box = choice.box,
                 .row_blocks = latent_row_blocks(args),
                 .part_rows = latent_part_rows(args),
                 .split_out = arena.floats(Buf::split_partial_out),
                 .split_top = arena.floats(Buf::split_partial_top),
                 .split_sum = arena.floats(Buf::split_partial_sum),
                 .arrivals = arena.counts(Buf::split_arrivals),
                 .arrival_stride = static_cast<int32_t>(arena.shape(Buf::split_arrivals).columns)};
  const cudaStream_t stream = stream_of(exec);
  if (args.kv.type == Dtype::bf16)
    launch<__nv_bfloat16>(d, choice.blocks, stream);
  else
    launch<__half>(d, choice.blocks, stream);
}

}  // namespace quire::attn::cuda
