// The tiles of prefill (prefill_kernel_cuda.cuh): what a call is, how a block's shared memory lies, and which tiles a
// block takes, one after the other.
#pragma once
#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/prefill_cut.h"
#include "attn/prefill_producer.h"
#include "attn/split_cuda.cuh"
#include "attn/stream_k_cuda.cuh"
#include "attn/work_ring_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda::prefill_kernels {

using hopper::Barrier;
using hopper::kLineBytes;
using hopper::kPanelColumns;
using hopper::kWarpgroup;
using hopper::PipelineState;

constexpr int32_t kRowsEach = 64;  // of a consumer
constexpr int32_t kMostStages = 4, kMostPanelBytes = 224 * 1024;
constexpr int32_t kMostCached = 512;  // sequences
constexpr int32_t kMostConsumers = 3;
constexpr int32_t kHeadsAtOnce = 4;

struct Prefill {
  CUtensorMap key_boxes, value_boxes, query_boxes;
  AttendArgs args;
  bool queries_in_boxes;  // where the group divides a consumer's rows, else they are copied one by one
  int32_t group;
  int32_t box;             // tokens that TMA copies at once; 0: rows are copied one by one
  int32_t* next;           // the counter of tiles; zero before and after
  float factor;            // of scores, to powers of two
  float cap_scale;         // with a softcap: of scores, to its argument
  GroupDivider by_group;   // of rows of a tile
  PartialResults partial;  // one for each split of a tile that has several
  int32_t* arrivals;       // one for each consumer of each such tile
};

constexpr int32_t panels(int32_t dim) { return (dim + kPanelColumns - 1) / kPanelColumns; }

// A warpgroup's pieces of 16 bytes of a step's keys or values of 8 bits: 64 columns of 8 lines for each warp.
constexpr int32_t kRawColumns = 16, kRawLines = 8;
constexpr int32_t raw_pieces(int32_t keys, int32_t dim) {
  return keys / (kWarpgroup / kWarp) / kRawLines * panels(dim);
}

// Shared memory, in panels: queries, then the stages of keys, then those of values; then, where these are widened,
// two loads as they are stored. kSplitsKeys: whether tiles may be split, or have branches; prompts have a kernel
// without, which is some percent faster.
template <int32_t kKeyDim, int32_t kValueDim, bool kWidens, bool kSplitsKeys>
struct Layout {
  static constexpr bool kSplits = kSplitsKeys, kTrees = kSplitsKeys && prefill_has_trees(kKeyDim);
  // As many consumers and keys as registers have room for: a thread has a score of each second key, a probability of
  // each fourth, and a sum of each second column; where there is room, the probabilities of two steps
  // (Consumer::fold()).
  static constexpr int32_t kConsumers = kValueDim == 64 ? 3 : 2, kKeys = prefill_keys(kKeyDim, kValueDim, kWidens);
  static constexpr int32_t kProbs = kValueDim == 64 || kKeyDim > 128 ? 1 : 2;
  static constexpr int32_t kProducerRegisters = kConsumers == 3 ? 32 : kProbs == 2 ? 56 : 72;
  static constexpr int32_t kConsumerRegisters = kConsumers == 3 ? 160 : kProbs == 2 ? 224 : 216;
  static constexpr int32_t kThreads = (1 + kConsumers) * kWarpgroup, kRows = kConsumers * kRowsEach;
  static constexpr int32_t kKeyPanels = panels(kKeyDim), kValuePanels = panels(kValueDim);
  static constexpr int32_t kQueryPanel = kRows * kLineBytes, kPanel = kKeys * kLineBytes;
  static constexpr int32_t kQueryBytes = kKeyPanels * kQueryPanel;
  static constexpr int32_t kKeyBytes = kKeyPanels * kPanel, kValueBytes = kValuePanels * kPanel;
  static constexpr int32_t kRawPieces = std::max(raw_pieces(kKeys, kKeyDim), raw_pieces(kKeys, kValueDim));
  static constexpr int32_t kRawBytes = kWidens ? kRawPieces * kWarpgroup * 16 : 0;
  static constexpr int32_t kRoom = kMostPanelBytes - kQueryBytes - 2 * kRawBytes;
  static constexpr int32_t kValueStages = std::min(kMostStages, kRoom / (kKeyBytes + kValueBytes));
  static constexpr int32_t kKeyStages = std::min(kMostStages, (kRoom - kValueStages * kValueBytes) / kKeyBytes);
  static constexpr int32_t kPanelBytes = kQueryBytes + kKeyStages * kKeyBytes + kValueStages * kValueBytes;
  static constexpr int32_t kBytes = kPanelBytes + 2 * kRawBytes;
  static_assert(kValueStages >= kLeastStages, "the producer waits for what it has not signalled yet");
  static_assert(kSplitRows / kRows / 2 * kConsumers <= kMostSplitBlocks,
                "a count of arrivals for each consumer of tiles in two splits");

  // What precedes is the system's, and choose_gpu() has asked the device how much that is. That the compiler knows the
  // address keeps those of operands in registers that a warp shares, which is where products want them.
  static constexpr uint32_t kBase = kPrefillSharedBase;
  __device__ uint32_t queries() const { return kBase; }
  __device__ uint32_t keys(int32_t stage) const { return kBase + kQueryBytes + stage * kKeyBytes; }
  __device__ uint32_t values(int32_t stage) const {
    return kBase + kQueryBytes + kKeyStages * kKeyBytes + stage * kValueBytes;
  }
  __device__ uint32_t raw(int32_t load) const { return kBase + kPanelBytes + load * kRawBytes; }
};

// `rows` packed rows of a sequence from `first` on, of which the first kRows count, of one kv head, and the keys that
// any of them sees, counted from the sequence's first.
struct Tile {
  const PageId* pages;
  int32_t kv_head, first, rows;
  int32_t query_row, head;        // of its first row: the row of queries, and which head of the group it is
  int32_t length;                 // keys of the sequence
  int32_t first_key, end_key;     // seen by any row
  int32_t last_first, least_end;  // keys between these are seen by all rows
  int32_t num_splits, split;      // of the tile, by keys, and which of them this is
  int32_t first_slot;             // of its kv head: where partial results of the splits lie, if there are several
  int32_t branch, places;         // of a tree: places of each query behind the keys, and of all of the tile's
  int32_t last_row;               // before which the sequence's queries end
};

// Row `row` of a tile: the query's, counted from the tile's first, and the head of the group.
struct PackedRow {
  int32_t query, head;
  __device__ PackedRow(const Prefill& p, const Tile& tile, int32_t row)
      : query(p.by_group(tile.head + row)), head(tile.head + row - query * p.group) {}
};

// What the warps of a block share, after the panels: the tiles, and
struct SharedStorage : WorkRing<Tile, kTileRing> {
  Barrier keys_full[kMostStages], keys_empty[kMostStages], values_full[kMostStages], values_empty[kMostStages];
  Barrier queries_full[kMostConsumers];
  Barrier edge;                     // values of which some rows must become zeros before they are full
  bool is_last[kMostConsumers];     // of a tile's splits
  int32_t first_rows[kMostCached];  // of sequences, if there are not more; the upper half: plan_splits(), of as many
  int32_t sums[(1 + kMostConsumers) * kWarpgroup / kWarp];
};

template <class Memory>
constexpr size_t kSharedBytes = Memory::kBytes + sizeof(SharedStorage);

template <class Memory>
__device__ void init_barriers(SharedStorage& storage, bool boxes) {
  constexpr int32_t kConsumerWarps = Memory::kConsumers * kWarpgroup / kWarp;
  const int32_t producer_warps = boxes ? 1 : kWarpgroup / kWarp;
  for (int32_t stage = 0; stage < kMostStages; ++stage) {
    hopper::init_barrier(&storage.keys_full[stage], producer_warps);
    hopper::init_barrier(&storage.values_full[stage], producer_warps);
    hopper::init_barrier(&storage.keys_empty[stage], kConsumerWarps);
    hopper::init_barrier(&storage.values_empty[stage], kConsumerWarps);
  }
  for (Barrier& full : storage.queries_full) hopper::init_barrier(&full, 1);
  hopper::init_barrier(&storage.edge, 1);
  storage.begin(kConsumerWarps + producer_warps);
  hopper::fence_proxy_async();
}

// --- split-KV

// Which tiles are split (prefill_cut.h). By all threads; plan: SplitsBefore of [live + 1] sequences.
template <class Memory>
__device__ void plan_splits(const Prefill& p, int32_t live, SharedStorage& storage, int32_t* plan) {
  constexpr auto kSlots = static_cast<int32_t>(kSplitRows / Memory::kRows);
  auto& sums = reinterpret_cast<int32_t(&)[Memory::kThreads / kWarp]>(storage.sums);
  const KeyView& keys = p.args.keys;
  const auto b = static_cast<int32_t>(threadIdx.x);
  int32_t tiles = 0, steps = 0, total;  // of the sequence; the steps of its last tile, which are the most
  if (b < live) {
    const int32_t queries = read_early(keys.cu_q + b + 1) - read_early(keys.cu_q + b);
    const int32_t length = read_early(keys.lengths + b);
    const int32_t first = p.args.window < 0 || !keys.causal ? 0 : max(0, length - queries - p.args.window);
    tiles = (queries * p.group + Memory::kRows - 1) / Memory::kRows;
    steps = (length + Memory::kKeys - 1) / Memory::kKeys - first / Memory::kKeys;
  }
  sum_before(tiles * steps, sums, total);
  __syncthreads();
  const int32_t share = share_of(int64_t{total} * p.args.kv.kv_heads, kSlots);
  const int32_t before = sum_before(SplitsBefore::of(tiles, splits_of(steps, share)).both, sums, total);
  if (b < live) plan[b] = before;
  if (b == 0) plan[live] = total;
  __syncthreads();
}

// --- the tiles

// All tiles of a step. A sequence has places for as many as its rows may need wherever they begin, so that no sum over
// sequences has to be made: at most one of its places has no rows. Where splits are planned, there is a place for each
// of them, and none that has no rows.
template <class Memory>
struct Work {
  static constexpr int32_t kRows = Memory::kRows, kKeys = Memory::kKeys;
  const Prefill& p;
  const int32_t* first_rows;  // cu_q, or a copy of it nearby
  const int32_t* plan;        // plan_splits(); null: no tile has several
  int32_t live;

  __device__ bool has_plan() const { return Memory::kSplits && plan; }
  // Places before sequence b: of all tiles, and of those that are split.
  __device__ int32_t place(int32_t b) const {
    return has_plan() ? SplitsBefore{plan[b]}.all() : first_rows[b] * p.group / kRows + b;
  }
  __device__ int32_t place_of_several(int32_t b) const { return SplitsBefore{plan[b]}.of_several(); }
  __device__ int32_t count() const { return live == 0 ? 0 : place(live) * p.args.kv.kv_heads; }

  // Whether there are rows, and keys of the split. A few kv heads at a time, so that what all blocks read stays in L2;
  // of these the splits come first, then the last tiles of the last sequence: they have the most keys.
  __device__ bool find(int32_t index, Tile& tile) const {
    const AttendArgs& args = p.args;
    const int32_t places = place(live), first_head = index / (places * kHeadsAtOnce) * kHeadsAtOnce;
    const int32_t heads = min(kHeadsAtOnce, args.kv.kv_heads - first_head), in_heads = index - first_head * places;
    tile.kv_head = first_head + in_heads % heads;
    const int32_t at = in_heads / heads;
    if (has_plan() && at < place_of_several(live)) return find_split(at, tile);
    const int32_t back = places - 1 - at;
    if (!has_plan()) {
      const int32_t b = last_that(live, [&](int32_t middle) { return place(middle) <= back; });
      return find_tile(b, back - place(b), tile);
    }
    const auto whole = [&](int32_t b) { return place(b) - place_of_several(b); };
    const int32_t b = last_that(live, [&](int32_t middle) { return whole(middle) <= back; });
    return find_tile(b, back - whole(b), tile);
  }

 private:
  __device__ bool find_split(int32_t at, Tile& tile) const {
    const int32_t b = last_that(live, [&](int32_t middle) { return place_of_several(middle) <= at; });
    const int32_t first = place_of_several(b), rows = (first_rows[b + 1] - first_rows[b]) * p.group;
    const int32_t splits = (place_of_several(b + 1) - first) / ((rows + kRows - 1) / kRows);
    const int32_t number = (at - first) / splits;
    tile.first_slot = first + number * splits;
    return find_tile(b, number, tile) && take_split(at - tile.first_slot, splits, tile);
  }

  __device__ bool find_tile(int32_t b, int32_t number, Tile& tile) const {
    const AttendArgs& args = p.args;
    tile.num_splits = 1;
    tile.first = number * kRows;
    tile.rows = (first_rows[b + 1] - first_rows[b]) * p.group - tile.first;
    if (tile.rows <= 0) return false;
    const Sequence sequence = sequence_at(args.keys, b, first_rows[b], first_rows[b + 1]);
    tile.pages = sequence.pages;
    tile.query_row = sequence.first_row + tile.first / p.group;
    tile.head = tile.first % p.group;
    tile.length = sequence.length();
    tile.branch = tile.places = 0;
    const int32_t last = tile.first + min(kRows, tile.rows) - 1;
    if (Memory::kTrees && args.keys.branch_lengths) {
      find_branches(sequence, last / p.group, tile);
      return true;
    }
    const Span early = span_of(args, sequence, tile.query_row);
    const Span late = span_of(args, sequence, sequence.first_row + last / p.group);
    tile.first_key = static_cast<int32_t>(early.first - sequence.start);
    tile.end_key = static_cast<int32_t>(late.end - sequence.start);
    tile.last_first = static_cast<int32_t>(late.first - sequence.start);
    tile.least_end = static_cast<int32_t>(early.end - sequence.start);
    return true;
  }

  // All rows see the keys in pages, but for a window.
  __device__ void find_branches(const Sequence& sequence, int32_t last_query, Tile& tile) const {
    const int32_t end = sequence.first_row + last_query + 1;
    const BranchLengths branches = branch_lengths(p.args.keys, tile.query_row, end);
    const int32_t window = p.args.window, first = window < 0 ? 0 : max(0, tile.length + branches.shortest - 1 - window);
    tile.branch = branches.longest;
    tile.places = (end - tile.query_row) * branches.longest;
    tile.last_row = sequence.last_row;
    tile.first_key = min(first, tile.length);
    tile.end_key = tile.length + tile.places;
    tile.last_first = window < 0 ? 0 : tile.length;
    tile.least_end = tile.length;
  }

  // A tile has as many splits as its sequence's last, unless it has fewer steps.
  __device__ bool take_split(int32_t split, int32_t splits, Tile& tile) const {
    const int32_t first = tile.first_key / kKeys, steps = (tile.end_key + kKeys - 1) / kKeys - first;
    tile.num_splits = max(1, min(splits, steps));
    tile.split = split;
    if (split >= tile.num_splits) return false;
    tile.end_key = min(tile.end_key, (first + (split + 1) * steps / tile.num_splits) * kKeys);
    tile.first_key = max(tile.first_key, (first + split * steps / tile.num_splits) * kKeys);
    return true;
  }
};

// Steps of kKeys keys, counted from the sequence's first: end - 1, end - 2, ... first.
template <int32_t kKeys>
struct Steps {
  int32_t first, end;
  __device__ explicit Steps(const Tile& tile)
      : first(uniform(tile.first_key / kKeys)),
        end(uniform(tile.end_key > tile.first_key ? (tile.end_key + kKeys - 1) / kKeys : first)) {}
};

using Tiles = Taker<Tile, kTileRing>;

// The dynamic tile scheduler: decides which tiles the block takes; one thread's. The first place is the block's own, so
// its tile is found while the kernel before ends; every place that was taken, one without rows included, is followed by
// one count, so the counter wraps to zero.
template <class Work>
class TileScheduler {
 public:
  __device__ TileScheduler(const Work& work, SharedStorage& storage) : work_(work), publisher_(storage) {}

  __device__ void publish_first() {
    publisher_.publish([&](Tile& tile) {
      const auto own = static_cast<int32_t>(blockIdx.x);
      if (own >= work_.count()) return false;
      if (work_.find(own, tile)) return true;
      griddep_wait();  // that kernel counts, too
      return find_next(tile);
    });
  }
  __device__ void publish_next() {
    publisher_.publish([&](Tile& tile) { return find_next(tile); });
  }

 private:
  __device__ bool find_next(Tile& tile) const {
    const int32_t count = work_.count();
    int32_t index = next_index();
    while (index < count && !work_.find(index, tile)) index = next_index();
    return index < count;
  }

  __device__ int32_t next_index() const {
    return gridDim.x + atomicInc(reinterpret_cast<unsigned*>(work_.p.next), static_cast<unsigned>(work_.count() - 1));
  }

  const Work& work_;
  Publisher<Tile, kTileRing> publisher_;
};

// A file for each, so that none takes long to compile. T: of queries. kSplits: Layout::kSplits.
template <class T, bool kSplits>
void launch(const Prefill& p, int32_t blocks, cudaStream_t stream);

}  // namespace quire::attn::cuda::prefill_kernels
