// Few queries of each sequence over latent keys (MLA, absorbed): one kv head for all heads, a row of 576 columns whose
// first 512 are the value, bf16 or f16. With 128 heads a key is used 128 times, so the products of Hopper's warpgroups
// count as much as the memory.
//
// Split-KV. (query row, head) pairs of a sequence are packed into blocks of 64 rows. The work is one line of units, 64
// keys of a sequence each, shared out among workers; a worker is a group of thread blocks, one for each block of rows,
// which go through the same keys at the same time, so that all but one find them in the cache. The plan is made here
// from the step's lengths, so a captured graph stays balanced whatever they are. A worker may begin or end inside a
// sequence; such a split goes to the workspace, and the block that arrives last merges the splits in the order of their
// keys.
//
// In a thread block the producer, a warpgroup, loads keys into two stages, by boxes of TMA or, when pages are smaller
// than the least box, row by row. The sums of 64 x 512 fill half of all registers, so two consumers have a half of the
// columns each:
//
//   softmax warpgroup   S = Q K^T of 64 keys, online softmax, P to shared memory     out[:, :256] += P V[:, :256]
//   values warpgroup                                               waits for P       out[:, 256:] += P V[:, 256:]
//
// V is what K is: the same shared memory, whose lines are the dimension that is summed over.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/hopper.cuh"
#include "attn/stream_k_cuda.cuh"
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
constexpr int32_t kConsumerThreads = 2 * kWarpgroup;  // threads of both
constexpr int32_t kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * 3,
              "more registers than there are");

// Named barriers; the last two are one for each multiplying warpgroup.
enum : int32_t { kProbsFree = 1, kProbsReady, kAllConsumers, kOwnWarpgroup };

struct Latent {
  AttendArgs args;
  CUtensorMap map;     // of the keys, in boxes; not used when they are gathered
  int32_t box;         // slots that one copy brings; 0: gathered
  int32_t row_blocks;  // of a sequence with the most queries
  int32_t split_rows;  // room for each split in the workspace
  float* split_out;    // [2 * thread blocks, split_rows, kValueDim]
  float* split_max;    // [2 * thread blocks, split_rows]
  float* split_sum;
  int32_t* arrivals;  // [sequences, arrival_stride], a column for each block of rows
  int32_t arrival_stride;
};

// --- how the work is shared out

// While the work is planned, in place of the first keys.
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
__device__ WorkPlan plan_work(int32_t total, int32_t longest, int32_t live, int32_t most, int32_t split_rows) {
  constexpr int32_t kSplitCost = 4;  // units that storing and merging a split take
  if (total == 0) return {};
  const auto least = static_cast<int32_t>(ceilf(sqrtf(static_cast<float>(longest) * split_rows / kRows)));
  const StreamK stream_k = StreamK::of(total, min(most, max(1, total / least)));
  const int32_t splits_each = stream_k.count / live;
  if (splits_each > 0 && (longest + splits_each - 1) / splits_each <= stream_k.each + kSplitCost)
    return {.count = splits_each * live, .splits_each = splits_each, .stream_k = {}};
  return {.count = stream_k.count, .splits_each = 0, .stream_k = stream_k};
}

// Units of one sequence, for one block of its rows.
struct Split {
  Sequence sequence;
  int32_t b, rows;                   // rows of the block; none: nothing to do
  Keys keys;                         // of the whole sequence
  int32_t tile, end;                 // tiles of 64 keys: tile .. end - 1
  int32_t first_worker, num_splits;  // of the whole sequence: one a worker
};

// The splits of a worker, one after the other.
struct TileScheduler {
  WorkPlan plan;
  int32_t unit, end;  // what is left of the worker's, in the line
  int32_t b, before;  // a sequence at or before that of `unit`, and the units before it

  __device__ TileScheduler(const Counts& counts, int32_t live, const WorkPlan& given, int32_t worker)
      : plan(given), unit(0), end(0), b(0), before(0) {
    if (worker >= plan.count) return;
    if (plan.splits_each)
      begin_own_splits(counts, worker);
    else
      begin_in_stream(counts, live, worker);
  }

  __device__ bool done() const { return unit >= end; }
  __device__ Split next(const Latent& d, int32_t row_block) {
    Keys keys = keys_of(d.args, b);
    for (; before + keys.units() <= unit; keys = keys_of(d.args, ++b)) before += keys.units();
    const Sequence sequence = sequence_at(d.args.keys, b);
    const int32_t packed = (sequence.last_row - sequence.first_row) * d.args.q.heads;
    const int32_t units = keys.units(), at = unit - before, count = min(end - unit, units - at);
    const int32_t first_worker = plan.splits_each ? b * plan.splits_each : plan.stream_k.worker_of(before);
    unit += count;
    return {.sequence = sequence,
            .b = b,
            .rows = min(packed - row_block * kRows, kRows),
            .keys = keys,
            .tile = keys.first_unit() + at,
            .end = keys.first_unit() + at + count,
            .first_worker = first_worker,
            .num_splits = plan.splits_each ? min(plan.splits_each, units)
                                           : plan.stream_k.worker_of(before + units - 1) - first_worker + 1};
  }

 private:
  __device__ void begin_own_splits(const Counts& counts, int32_t worker) {
    b = worker / plan.splits_each;
    before = counts.before[b];
    const int32_t units = counts.before[b + 1] - before, sharing = min(plan.splits_each, units),
                  index = worker % plan.splits_each;
    if (index >= sharing) return;
    unit = before + index * units / sharing;
    end = before + (index + 1) * units / sharing;
  }
  __device__ void begin_in_stream(const Counts& counts, int32_t live, int32_t worker) {
    unit = plan.stream_k.begin(worker);
    end = plan.stream_k.begin(worker + 1);
    b = last_that(live, [&](int32_t middle) { return counts.before[middle] <= unit; });
    before = counts.before[b];
  }
};

// --- the thread block

struct alignas(1024) Shared {
  std::byte queries[kTileBytes];
  std::byte keys[kStages][kTileBytes];
  std::byte probs[kPanelBytes];
  Barrier full[kStages], empty[kStages];
  float rescale[kRows];  // of a row's sums before this tile's probabilities are added
  float row_max[kRows], sum[kRows];
  bool is_last;
  TileScheduler scheduler;  // the consumers': they have no registers to spare
  Split split;
  bool has_split;
};

// What a thread block knows of its work.
struct Job {
  const Latent& d;
  Shared& shared;
  int32_t worker, row_block;
};

// --- the producer

__device__ int32_t look_up(const KeyView& keys, const Split& split, int32_t key) {
  return slot_in_pages(split.sequence.pages, keys.page_size.shift(), key);
}

// By one warp. Boxes without a key that a row sees are left out; a box never leaves its page. Table entries are asked
// for before the stage is free: they may come from far away.
__device__ void load_boxes(const Job& job, const Split& split, int32_t tile, PipelineState state) {
  const Latent& d = job.d;
  const int32_t lane = threadIdx.x, boxes = kKeys / d.box;
  const int32_t key = tile * kKeys + lane % boxes * d.box;
  const bool exists = key + d.box > split.keys.first && key < split.keys.end;
  const int32_t slot = exists ? look_up(d.args.keys, split, key) : -1;
  const int32_t existing = __popc(__ballot_sync(~0u, exists && lane < boxes));
  Barrier* const full = &job.shared.full[state.stage];
  wait(&job.shared.empty[state.stage], state.phase ^ 1);
  if (lane == 0) arrive_expect_tx(full, existing * d.box * kLineBytes * kPanels);
  __syncwarp();
  const uint32_t to = shared_address(job.shared.keys[state.stage]);
  for (int32_t first = 0; first < boxes * kPanels; first += kWarp) {
    const int32_t box = (first + lane) / kPanels, panel = (first + lane) % kPanels;
    const int32_t from = __shfl_sync(~0u, slot, box);
    if (box < boxes && from >= 0)
      tma_load(to + panel * kPanelBytes + box * d.box * kLineBytes, &d.map, full, panel * kPanelColumns, 0, from);
  }
}

// By the warpgroup, eight threads for each row: rows that no query sees are left out.
__device__ void gather(const Job& job, const Split& split, int32_t tile, PipelineState state) {
  constexpr int32_t kAtOnce = kWarpgroup / kPieces;
  const kv::LayerKv& kv = job.d.args.kv;
  const int32_t piece = threadIdx.x % kPieces, line = threadIdx.x / kPieces;
  int32_t slots[kKeys / kAtOnce];
#pragma unroll
  for (int32_t i = 0; i < kKeys / kAtOnce; ++i) {
    const int32_t key = tile * kKeys + line + i * kAtOnce;
    slots[i] = key >= split.keys.first && key < split.keys.end ? look_up(job.d.args.keys, split, key) : -1;
  }
  wait(&job.shared.empty[state.stage], state.phase ^ 1);
  const uint32_t to = shared_address(job.shared.keys[state.stage]);
#pragma unroll
  for (int32_t i = 0; i < kKeys / kAtOnce; ++i) {
    if (slots[i] < 0) continue;
    const std::byte* from = kv.keys + slots[i] * kv.key_stride * 2 + piece * 16;
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
      cp_async(piece_at(to + panel * kPanelBytes, line + i * kAtOnce, piece), from + panel * kLineBytes, true);
  }
  cp_async_arrive(&job.shared.full[state.stage]);
}

__device__ void produce(const Job& job, TileScheduler scheduler) {
  const bool gathers = job.d.box == 0;
  if (!gathers && threadIdx.x >= kWarp) return;
  PipelineState state;
  while (!scheduler.done()) {
    const Split split = scheduler.next(job.d, job.row_block);
    if (split.rows <= 0) continue;
    for (int32_t tile = split.tile; tile < split.end; ++tile, state.next(kStages))
      if (gathers)
        gather(job, split, tile, state);
      else
        load_boxes(job, split, tile, state);
  }
  cp_async_wait_all();
}

// --- the consumers

// A thread has two rows of the tile (row_of) and, of each eight columns, two.
__device__ int32_t lane_of() { return threadIdx.x % kWarp; }
__device__ uint32_t consumer_thread() { return threadIdx.x - kWarpgroup; }
__device__ int32_t half_of_columns() { return consumer_thread() / kWarpgroup; }
__device__ bool has_softmax() { return half_of_columns() == 0; }
__device__ int32_t row_of(int32_t half) { return threadIdx.x % kWarpgroup / kWarp * 16 + lane_of() / 4 + half * 8; }

// Query row and head of a tile's row; row < 0: none.
struct Row {
  int32_t row, head;
};
__device__ Row row_at(const Job& job, const Split& split, int32_t index) {
  const int32_t packed = job.row_block * kRows + index, heads = job.d.args.q.heads;
  return {index < split.rows ? split.sequence.first_row + packed / heads : -1, packed % heads};
}

__device__ void load_queries(const Job& job, const Split& split) {
  const ConstHeadRows& q = job.d.args.q;
  const uint32_t to = shared_address(job.shared.queries);
  const int32_t piece = consumer_thread() % kPieces;
  for (int32_t line = consumer_thread() / kPieces; line < kRows; line += kConsumerThreads / kPieces) {
    const Row row = row_at(job, split, line);
    const bool exists = row.row >= 0;
    const std::byte* from = q.data + (exists ? (row.row * q.row_stride + row.head * kKeyDim) * 2 + piece * 16 : 0);
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
      cp_async(piece_at(to + panel * kPanelBytes, line, piece), from + (exists ? panel * kLineBytes : 0), exists);
  }
  cp_async_wait_all();
  fence_proxy_async();
  named_barrier_sync(kAllConsumers, kConsumerThreads);
}

// Values that no row sees become zeros, each warpgroup's own columns: what lies there may be NaN, and 0 times that is
// NaN. Scores of such keys may be anything.
__device__ void clear_unseen(const Job& job, const Split& split, int32_t tile, int32_t stage) {
  constexpr int32_t kOwnPanels = kColumns / kPanelColumns, kLinePieces = kOwnPanels * kPieces;
  const int32_t first = split.keys.first - tile * kKeys, end = split.keys.end - tile * kKeys;
  if (first <= 0 && end >= kKeys) return;
  std::byte* const own = job.shared.keys[stage] + half_of_columns() * kOwnPanels * kPanelBytes;
#pragma unroll 1
  for (int32_t i = threadIdx.x % kWarpgroup; i < kKeys * kLinePieces; i += kWarpgroup) {
    const int32_t line = i / kLinePieces, panel = i % kLinePieces / kPieces;
    if (line >= first && line < end) continue;
    *reinterpret_cast<uint4*>(own + piece_at(panel * kPanelBytes, line, i % kPieces)) = {0, 0, 0, 0};
  }
  fence_proxy_async();
  named_barrier_sync(kOwnWarpgroup + half_of_columns(), kWarpgroup);
}

__device__ void wait_for_keys(const Job& job, const Split& split, int32_t tile, PipelineState state) {
  wait(&job.shared.full[state.stage], state.phase);
  if (job.d.box == 0) fence_proxy_async();  // what was gathered did not come by TMA
  clear_unseen(job, split, tile, state.stage);
}

__device__ void release(const Job& job, PipelineState state) {
  if (lane_of() == 0) arrive(&job.shared.empty[state.stage]);
}

template <class T>
__device__ void issue_qk(const Job& job, int32_t stage, float (&scores)[kKeys / 2]) {
  constexpr int32_t kSteps = kKeyDim / 16, kOfPanel = kPanelColumns / 16;
  const uint64_t queries = wgmma_descriptor(shared_address(job.shared.queries));
  const uint64_t keys = wgmma_descriptor(shared_address(job.shared.keys[stage]));
  wgmma_fence();
#pragma unroll
  for (int32_t step = 0; step < kSteps; ++step) {
    const int32_t at = step / kOfPanel * kPanelBytes + step % kOfPanel * 32;
    wgmma_qk<T, kKeys>(scores, advance_descriptor(queries, at), advance_descriptor(keys, at), step > 0);
  }
  wgmma_commit();
}

using Out = float[kColumns / 2];

template <class T>
__device__ void issue_pv(const Job& job, int32_t stage, Out& out) {
  const uint64_t probs = wgmma_descriptor(shared_address(job.shared.probs));
  const uint64_t values = wgmma_descriptor(
      shared_address(job.shared.keys[stage]) + half_of_columns() * kColumns / kPanelColumns * kPanelBytes, kPanelBytes);
  wgmma_fence();
#pragma unroll
  for (int32_t step = 0; step < kKeys / 16; ++step)
    wgmma_pv_shared<T>(out, advance_descriptor(probs, step * 32), advance_descriptor(values, step * 16 * kLineBytes),
                       1);
  wgmma_commit();
}

__device__ void rescale_rows(Out& out, const float (&rescale)[2]) {
  if (__all_sync(~0u, rescale[0] == 1 && rescale[1] == 1)) return;
#pragma unroll
  for (int32_t i = 0; i < kColumns / 2; ++i) out[i] *= rescale[i / 2 % 2];
}

// --- the softmax warpgroup

// Of the thread's two rows.
struct Softmax {
  float row_max[2] = {-INFINITY, -INFINITY};  // in powers of two
  float sum[2] = {0, 0};                      // of this thread's columns alone until the end
};

// Keys [first, end) that the thread's two rows see, counted from the sequence's first.
struct Seen {
  int32_t first[2], end[2];
};
__device__ Seen seen_by(const Job& job, const Split& split) {
  Seen seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, split, row_of(half));
    const Span span = row.row < 0 ? Span{0, 0} : span_of(job.d.args, split.sequence, row.row);
    seen.first[half] = static_cast<int32_t>(max(span.first - split.sequence.start, int64_t{0}));
    seen.end[half] = static_cast<int32_t>(max(span.end - split.sequence.start, int64_t{0}));
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

// Scores become probabilities; rescale: what the rows' sums before them are multiplied by.
__device__ void online_softmax(Softmax& softmax, float (&scores)[kKeys / 2], float (&rescale)[2]) {
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const auto score = [&](int32_t i) -> float& { return scores[i / 2 * 4 + half * 2 + i % 2]; };
    float row_max = score(0);
#pragma unroll
    for (int32_t i = 1; i < kKeys / 4; ++i) row_max = fmaxf(row_max, score(i));
    row_max = fmaxf(softmax.row_max[half], quad_max(row_max));
    const float base = row_max == -INFINITY ? 0 : row_max;
    rescale[half] = fast_exp2(softmax.row_max[half] - base);
    softmax.row_max[half] = row_max;
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < kKeys / 4; ++i) {
      score(i) = fast_exp2(score(i) - base);
      sum += score(i);
    }
    softmax.sum[half] = softmax.sum[half] * rescale[half] + sum;
  }
}

// Probabilities and what the rows are rescaled by, for both warpgroups. A store has two pieces of each of the warp's 16
// lines.
template <class T>
__device__ void publish_probs(const Job& job, const float (&probs)[kKeys / 2], const float (&rescale)[2]) {
  const int32_t lane = lane_of(), line = threadIdx.x % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
  for (int32_t n = 0; n < kKeys / 8; n += 2) {
    const float* const w = probs + 4 * n;
    stmatrix_x4(piece_at(shared_address(job.shared.probs), line, n + lane / 16),
                {pair<T>(w[0], w[1]), pair<T>(w[2], w[3]), pair<T>(w[4], w[5]), pair<T>(w[6], w[7])});
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half)
    if (lane % 4 == 0) job.shared.rescale[row_of(half)] = rescale[half];
  fence_proxy_async();
}

// The scores of the next tile are begun behind the values of this one, so that the products have a gap only where the
// softmax is. If the next tile is late, this one's stage is free for another before it comes.
template <class T>
__device__ void consume_with_softmax(const Job& job, const Split& split, PipelineState& state, Out& out) {
  const Seen seen = seen_by(job, split);
  Softmax softmax;
  float scores[kKeys / 2];
  wait_for_keys(job, split, split.tile, state);
  issue_qk<T>(job, state.stage, scores);
  wgmma_wait<0>();
  for (int32_t tile = split.tile;; ++tile) {
    float rescale[2];
    scale_scores(job.d.args, seen, tile * kKeys, scores);
    online_softmax(softmax, scores, rescale);
    named_barrier_sync(kProbsFree, kConsumerThreads);
    publish_probs<T>(job, scores, rescale);
    named_barrier_sync(kProbsReady, kConsumerThreads);
    rescale_rows(out, rescale);
    issue_pv<T>(job, state.stage, out);
    const PipelineState used = state;
    state.next(kStages);
    const bool has_next = tile + 1 < split.end,
               overlaps = has_next && test_wait(&job.shared.full[state.stage], state.phase);
    if (!overlaps) {
      wgmma_wait<0>();
      release(job, used);
    }
    if (!has_next) break;
    wait_for_keys(job, split, tile + 1, state);
    issue_qk<T>(job, state.stage, scores);
    if (overlaps) {
      wgmma_wait<1>();
      release(job, used);
    }
    wgmma_wait<0>();
  }
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const float sum = quad_sum(softmax.sum[half]);
    if (lane_of() % 4 == 0) {
      job.shared.row_max[row_of(half)] = softmax.row_max[half];
      job.shared.sum[row_of(half)] = sum;
    }
  }
}

template <class T>
__device__ void consume_values(const Job& job, const Split& split, PipelineState& state, Out& out) {
  for (int32_t tile = split.tile; tile < split.end; ++tile, state.next(kStages)) {
    wait_for_keys(job, split, tile, state);
    named_barrier_arrive(kProbsFree, kConsumerThreads);
    named_barrier_sync(kProbsReady, kConsumerThreads);
    const float rescale[2] = {job.shared.rescale[row_of(0)], job.shared.rescale[row_of(1)]};
    rescale_rows(out, rescale);
    issue_pv<T>(job, state.stage, out);
    wgmma_wait<0>();
    release(job, state);
  }
}

// --- what becomes of a split's sums

// Of the thread's two rows: sums of weighted values are relative to 2^row_max.
struct RowStats {
  float row_max[2], sum[2];
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

__device__ void write_rows(const Job& job, const Split& split, const RowStats& stats, const Out& out) {
  const AttendArgs& args = job.d.args;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, split, row_of(half));
    if (row.row < 0) continue;
    const float row_max = stats.row_max[half] * kLn2, sum = stats.sum[half];
    const float factor = factor_of(row_max, sum, args.sinks ? args.sinks[row.head] : -INFINITY, args.kv.value_scale);
    const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * kValueDim + first_column();
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n)
      store_pair(args.out.type, args.out.data, at + n * 8,
                 {out[4 * n + 2 * half] * factor, out[4 * n + 2 * half + 1] * factor});
    if (args.lse && has_softmax() && lane_of() % 4 == 0)
      args.lse[row.head * args.q.rows + row.row] = row_max == -INFINITY ? -INFINITY : row_max + logf(sum);
  }
}

// Where a split of the sequence and block of rows lies, counted from the first. A thread block leaves at most two: one
// of a sequence that earlier ones have the begin of, one of a sequence that later ones have the rest of.
__device__ int64_t slot_of_split(const Job& job, const Split& split, int32_t index) {
  return 2 * (int64_t{split.first_worker + index} * job.d.row_blocks + job.row_block) + (index == 0 ? 1 : 0);
}

// The thread's columns of a row of the workspace.
__device__ float2* sums_at(const Latent& d, int64_t row) {
  return reinterpret_cast<float2*>(d.split_out + row * kValueDim + first_column());
}

__device__ void store_partial(const Job& job, const Split& split, const RowStats& stats, const Out& out) {
  const int64_t slot = slot_of_split(job, split, job.worker - split.first_worker);
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    if (row_of(half) >= split.rows) continue;
    const int64_t row = slot * job.d.split_rows + row_of(half);
    float2* const to = sums_at(job.d, row);
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n) __stcg(to + n * 4, {out[4 * n + 2 * half], out[4 * n + 2 * half + 1]});
    if (has_softmax() && lane_of() % 4 == 0) {
      __stcg(job.d.split_max + row, stats.row_max[half]);
      __stcg(job.d.split_sum + row, stats.sum[half]);
    }
  }
}

// Whether this thread block's split is the last of its sequence to arrive. The count wraps: the next layer finds it at
// zero. That one thread releases and acquires is enough: what the others wrote or will read is ordered with it by the
// barriers.
__device__ bool arrive_last(const Job& job, const Split& split) {
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  if (consumer_thread() == 0) {
    int32_t* const arrivals = job.d.arrivals + int64_t{split.b} * job.d.arrival_stride + job.row_block;
    job.shared.is_last = count_arrival(arrivals, split.num_splits - 1) == split.num_splits - 1;
  }
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  return job.shared.is_last;
}

// Into the registers of the threads that would have had the sums alone.
__device__ void merge_splits(const Job& job, const Split& split, RowStats& stats, Out& out) {
  const Latent& d = job.d;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = min(row_of(half), split.rows - 1);  // rows past the last repeat it, and are not written
    const auto at = [&](int32_t p) { return slot_of_split(job, split, p) * d.split_rows + row; };
    float row_max = -INFINITY, sum = 0;
    for (int32_t p = 0; p < split.num_splits; ++p) row_max = fmaxf(row_max, __ldcg(d.split_max + at(p)));
#pragma unroll
    for (int32_t n = 0; n < kColumns / 8; ++n) out[4 * n + 2 * half] = out[4 * n + 2 * half + 1] = 0;
    for (int32_t p = 0; p < split.num_splits; ++p) {
      const float share = row_max == -INFINITY ? 0 : fast_exp2(__ldcg(d.split_max + at(p)) - row_max);
      sum += share * __ldcg(d.split_sum + at(p));
      const float2* const from = sums_at(d, at(p));
#pragma unroll
      for (int32_t n = 0; n < kColumns / 8; ++n) {
        const float2 both = __ldcg(from + n * 4);
        out[4 * n + 2 * half] += share * both.x;
        out[4 * n + 2 * half + 1] += share * both.y;
      }
    }
    stats.row_max[half] = row_max;
    stats.sum[half] = sum;
  }
}

__device__ void finish_split(const Job& job, const Split& split, Out& out) {
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  RowStats stats{{job.shared.row_max[row_of(0)], job.shared.row_max[row_of(1)]},
                 {job.shared.sum[row_of(0)], job.shared.sum[row_of(1)]}};
  if (split.num_splits > 1) {
    store_partial(job, split, stats, out);
    if (!arrive_last(job, split)) return;
    merge_splits(job, split, stats, out);
  }
  write_rows(job, split, stats, out);
}

// Goes to the next split that has rows; false: there is none.
__device__ bool next_split(const Job& job) {
  Shared& shared = job.shared;
  named_barrier_sync(kAllConsumers, kConsumerThreads);  // nobody needs the last one any more
  if (consumer_thread() == 0) {
    shared.has_split = false;
    while (!shared.has_split && !shared.scheduler.done()) {
      shared.split = shared.scheduler.next(job.d, job.row_block);
      shared.has_split = shared.split.rows > 0;
    }
  }
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  return shared.has_split;
}

template <class T>
__device__ void consume(const Job& job) {
  const Split& split = job.shared.split;
  PipelineState state;
  while (next_split(job)) {
    load_queries(job, split);
    Out out = {};
    if (has_softmax())
      consume_with_softmax<T>(job, split, state, out);
    else
      consume_values<T>(job, split, state, out);
    finish_split(job, split, out);
  }
}

// Rows of sequences without keys, and rows past the live ones.
__device__ void write_empty_rows(const AttendArgs& args) {
  const int32_t live = *args.keys.live, live_rows = live ? args.keys.cu_q[live] : 0;
  const auto write_empty = [&](int32_t first, int32_t last) {
    for (int64_t row = first; row < last; ++row) write_empty_row(args, row, consumer_thread(), kConsumerThreads);
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
      init_barrier(&shared.empty[stage], kConsumerThreads / kWarp);
    }
    if (d.box > 0) prefetch_tensor_map(&d.map);
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
                .worker = static_cast<int32_t>(blockIdx.x) / d.row_blocks,
                .row_block = static_cast<int32_t>(blockIdx.x) % d.row_blocks};
  const TileScheduler scheduler(counts, live, plan_work(total, longest, live, most, d.split_rows), job.worker);
  if (threadIdx.x == 0) shared.scheduler = scheduler;
  fence_proxy_async();  // the barriers are there, and nobody writes counts any more
  __syncthreads();      // nor reads them: their place is the keys'
  if (threadIdx.x < kWarpgroup) {
    warpgroup_reg_dealloc<kProducerRegisters>();
    produce(job, scheduler);
  } else {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<T>(job);
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
                 .split_rows = latent_split_rows(args),
                 .split_out = arena.floats(Buf::split_partial_out),
                 .split_max = arena.floats(Buf::split_partial_max),
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
