// Many queries of each sequence, bf16 or f16, over keys and values like them or e4m3, on Hopper GPUs: bound by the
// tensor cores, so all that counts is that they never wait, neither for keys nor for the softmax.
//
// A tile is 64 packed rows (query row x head of the group) for each consumer, of one sequence and kv head, against
// kKeys keys at a time, from its last key to its first, so that what must be masked comes first. A block's warpgroups:
//
//   producer    fills a ring of stages with keys and values: pages of kPrefillLeastBox tokens or more by TMA,
//               smaller ones row by row with cp.async (boxes of few rows cost TMA more time than it has); e4m3 row by
//               row, and widens it to what is multiplied
//   consumers   two or three, 64 rows each: S = Q K^T of the next keys and O += P V of the last ones are given to the
//               tensor cores together, then the softmax of S is made while O is still being summed. They take turns in
//               giving (ping-pong), so that one's softmax is made during the others' products. What counts is how long
//               a warp takes for it: so it has no maximum where none is needed (stale_softmax()), and all that is not
//               a power of two is done in the time that powers of two take.
//
// The kernel is persistent: a block's tile scheduler takes the next tile from a counter when it has done with one,
// heaviest tiles of a sequence first, and the producer is at the next tile's keys while the consumers write their
// results. Where tiles are few, those that are longer than their share are split over keys (split-KV): each split
// is scheduled as a tile of its own and leaves its sums in the workspace, and the consumer that arrives last merges its
// rows' splits.
#include <algorithm>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/prefill_cut.h"
#include "attn/prefill_producer.h"
#include "attn/softmax_cuda.cuh"
#include "attn/split_rows_cuda.cuh"
#include "attn/stream_k_cuda.cuh"
#include "attn/tensor_map.h"
#include "attn/work_ring_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {
namespace {

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
// two loads as they are stored. kSplitsKeys: whether tiles may be split; prompts have a kernel without, which is some
// percent faster.
template <int32_t kKeyDim, int32_t kValueDim, bool kWidens, bool kSplitsKeys>
struct Layout {
  static constexpr bool kSplits = kSplitsKeys;
  // As many consumers and keys as registers have room for: a thread has a score of each second key, a probability of
  // each fourth, and a sum of each second column; where there is room, the probabilities of two steps
  // (Consumer::fold()).
  static constexpr int32_t kConsumers = kValueDim == 64 ? 3 : 2, kKeys = prefill_keys(kValueDim);
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
    const int32_t queries = keys.cu_q[b + 1] - keys.cu_q[b], length = keys.lengths[b];
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
    const Sequence sequence = sequence_at(args.keys, b);
    tile.pages = sequence.pages;
    tile.query_row = sequence.first_row + tile.first / p.group;
    tile.head = tile.first % p.group;
    tile.length = static_cast<int32_t>(sequence.end - sequence.start);
    const int32_t last = tile.first + min(kRows, tile.rows) - 1;
    const Span early = span_of(args, sequence, tile.query_row);
    const Span late = span_of(args, sequence, sequence.first_row + last / p.group);
    tile.first_key = static_cast<int32_t>(early.first - sequence.start);
    tile.end_key = static_cast<int32_t>(late.end - sequence.start);
    tile.last_first = static_cast<int32_t>(late.first - sequence.start);
    tile.least_end = static_cast<int32_t>(early.end - sequence.start);
    return true;
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

// The dynamic tile scheduler: decides which tiles the block takes; one thread's. The first place is the block's own;
// every place that was taken, one without rows included, is followed by one count, so the counter wraps to zero.
template <class Work>
class TileScheduler {
 public:
  __device__ TileScheduler(const Work& work, SharedStorage& storage) : work_(work), publisher_(storage) {}

  __device__ void publish_first() { publish(blockIdx.x); }
  __device__ void publish_next() { publish(next_index()); }

 private:
  __device__ int32_t next_index() const {
    return gridDim.x + atomicInc(reinterpret_cast<unsigned*>(work_.p.next), static_cast<unsigned>(work_.count() - 1));
  }

  __device__ void publish(int32_t index) {
    publisher_.publish([&](Tile& tile) {
      const int32_t count = work_.count();
      while (index < count && !work_.find(index, tile)) index = next_index();
      return index < count;
    });
  }

  const Work& work_;
  Publisher<Tile, kTileRing> publisher_;
};

// --- the producer

// Where the keys of a tile come from.
struct Source {
  const PageId* pages;
  int32_t first_key, length, kv_head;

  __device__ explicit Source(const Tile& tile)
      : pages(tile.pages), first_key(tile.first_key), length(tile.length), kv_head(tile.kv_head) {}
  __device__ int32_t slot_of(int32_t key, int32_t shift) const { return slot_in_pages(pages, shift, key); }
};

// Copies by TMA of a step's keys in so many boxes, for one warp: all lanes look them up, so that they stay together,
// one of them issues.
template <class Memory, int32_t kBoxes>
class BoxLoader {
 public:
  static constexpr int32_t kKeys = Memory::kKeys, kBox = kKeys / kBoxes;

  __device__ BoxLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage), shift_(p.args.keys.page_size.shift()) {
    hopper::prefetch_tensor_map(&p.key_boxes);
    hopper::prefetch_tensor_map(&p.value_boxes);
  }

  struct Slots {
    int32_t of_box[kBoxes];
  };

  __device__ Slots look_up(const Source& source, int32_t step) const {
    Slots slots;
#pragma unroll
    for (int32_t box = 0; box < kBoxes; ++box) {
      const int32_t key = step * kKeys + box * kBox;
      const bool exists = key + kBox > source.first_key && key < source.length;
      slots.of_box[box] = exists ? source.slot_of(key, shift_) : 0;
    }
    return slots;
  }

  __device__ void load_keys(const Source& source, int32_t step, const Slots& slots) {
    hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
    load<Memory::kKeyPanels>(source, Range(source, step), slots, &p_.key_boxes, &storage_.keys_full[keys_.stage],
                             memory_.keys(keys_.stage));
    keys_.next(Memory::kKeyStages);
  }

  __device__ void load_values(const Source& source, int32_t step, const Slots& slots) {
    hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
    const uint32_t to = memory_.values(values_.stage);
    Barrier* const full = &storage_.values_full[values_.stage];
    const Range range(source, step);
    const bool is_whole = range.is_whole();
    load<Memory::kValuePanels>(source, range, slots, &p_.value_boxes, is_whole ? full : &storage_.edge, to);
    if (!is_whole) clear_outside(range, to, full);
    values_.next(Memory::kValueStages);
  }

  __device__ bool publishes_late() const { return false; }
  __device__ bool keys_must_wait() const { return false; }
  __device__ void flush() const {}  // TMA itself signals when a copy is there

 private:
  // Keys of a step that exist for the tile.
  struct Range {
    int32_t first, end;
    __device__ Range(const Source& source, int32_t step)
        : first(max(source.first_key - step * kKeys, 0)), end(min(source.length - step * kKeys, kKeys)) {}
    __device__ bool is_whole() const { return first == 0 && end == kKeys; }
    __device__ bool has(int32_t from, int32_t count) const { return from < end && from + count > first; }
  };

  // The boxes that have any of a range.
  template <int32_t kPanels>
  __device__ void load(const Source& source, const Range& range, const Slots& slots, const CUtensorMap* map,
                       Barrier* full, uint32_t to) const {
    constexpr int32_t kBytes = kBox * kLineBytes;
    if (hopper::elect_one()) {
      int32_t boxes = 0;
#pragma unroll
      for (int32_t box = 0; box < kBoxes; ++box) boxes += range.has(box * kBox, kBox);
      hopper::arrive_expect_tx(full, boxes * kBytes * kPanels);
#pragma unroll
      for (int32_t box = 0; box < kBoxes; ++box)
        if (range.has(box * kBox, kBox))
#pragma unroll
          for (int32_t panel = 0; panel < kPanels; ++panel)
            hopper::tma_load(to + panel * Memory::kPanel + box * kBytes, map, full, panel * kPanelColumns,
                             source.kv_head, slots.of_box[box]);
    }
    __syncwarp();
  }

  // A probability of zero times what lies before the first key, or past the last, must be zero.
  __device__ void clear_outside(const Range& range, uint32_t to, Barrier* full) {
    hopper::wait(&storage_.edge, edge_phase_);
    edge_phase_ ^= 1;
    for (int32_t panel = 0; panel < Memory::kValuePanels; ++panel) {
      clear_lines(to + panel * Memory::kPanel, 0, range.first);
      clear_lines(to + panel * Memory::kPanel, range.end, kKeys);
    }
    hopper::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x == 0) hopper::arrive(full);
  }
  static __device__ void clear_lines(uint32_t panel, int32_t first, int32_t end) {
    for (int32_t i = first * (kLineBytes / 16) + threadIdx.x; i < end * (kLineBytes / 16); i += kWarp)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(panel + i * 16), "r"(0) : "memory");
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t shift_;
  PipelineState keys_, values_;
  uint32_t edge_phase_ = 0;
};

// A warpgroup's share of a step's keys, row by row: a warp has a quarter of them, a lane the slot of one.
template <int32_t kKeys>
struct WarpRows {
  static constexpr int32_t kCount = kKeys / (kWarpgroup / kWarp);

  static __device__ int32_t lane() { return threadIdx.x % kWarp; }
  static __device__ int32_t first_line() { return threadIdx.x % kWarpgroup / kWarp * kCount; }

  // In the place of keys that do not exist, or that none of the tile's rows sees, comes the one next to them: its
  // probabilities are masked, and it is among the tile's keys anyway.
  static __device__ int32_t look_up(const Source& source, int32_t step, int32_t shift) {
    const int32_t key = step * kKeys + first_line() + lane() % kCount;
    if (source.first_key >= source.length) return 0;
    return source.slot_of(min(max(key, source.first_key), source.length - 1), shift);
  }
};

// What a warp's copies of rows are to DeferredSignal.
struct RowCopies {
  static __device__ void end_load() { cp_async_commit(); }
  template <int32_t kLoads>
  static __device__ void wait_for_all_but() {
    cp_async_wait<kLoads>();
  }
  static __device__ void signal(Barrier* full) {
    hopper::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) hopper::arrive(full);
  }
};

// Copies of a warpgroup row by row. Who made the copies must see their end, for the tensor cores to see them: so a load
// is signalled when the next one has been issued.
template <class Memory, int32_t kKeyDim, int32_t kValueDim>
class RowLoader {
 public:
  using Rows = WarpRows<Memory::kKeys>;

  __device__ RowLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage), shift_(p.args.keys.page_size.shift()) {}

  __device__ int32_t look_up(const Source& source, int32_t step) const { return Rows::look_up(source, step, shift_); }

  __device__ void load_keys(const Source& source, int32_t, int32_t slot) {
    hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
    load<kKeyDim>(p_.args.kv.keys, p_.args.kv.key_stride, source.kv_head, slot, memory_.keys(keys_.stage));
    loads_.issued(&storage_.keys_full[keys_.stage]);
    keys_.next(Memory::kKeyStages);
  }

  __device__ void load_values(const Source& source, int32_t, int32_t slot) {
    hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
    load<kValueDim>(p_.args.kv.values, p_.args.kv.value_stride, source.kv_head, slot, memory_.values(values_.stage));
    loads_.issued(&storage_.values_full[values_.stage]);
    values_.next(Memory::kValueStages);
  }

  __device__ bool publishes_late() const { return false; }
  __device__ bool keys_must_wait() const {
    return !hopper::test_wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
  }
  __device__ void flush() { loads_.flush(); }

 private:
  // Eight lanes have a line, four lines go at once. Every second four lie alike.
  template <int32_t kDim>
  __device__ void load(const std::byte* rows, int64_t stride, int32_t kv_head, int32_t slot, uint32_t to) const {
    const int32_t piece = Rows::lane() % 8, line = Rows::lane() / 8;
    const std::byte* const from = rows + (int64_t{kv_head} * kDim + piece * 8) * 2;
    const uint32_t bytes = static_cast<uint32_t>(stride) * 2;
    const uint32_t places[2] = {hopper::piece_at(to, Rows::first_line() + line, piece),
                                hopper::piece_at(to, Rows::first_line() + 4 + line, piece)};
#pragma unroll
    for (int32_t i = 0; i < Rows::kCount / 4; ++i) {
      const auto at = static_cast<uint32_t>(__shfl_sync(~0u, slot, i * 4 + line));
      const std::byte* const row = address_of(from, at, bytes);
#pragma unroll
      for (int32_t panel = 0; panel < panels(kDim); ++panel)
        if (panel * kPanelColumns + piece * 8 < kDim)
          cp_async(places[i % 2] + i / 2 * 8 * kLineBytes + panel * Memory::kPanel, row + panel * kLineBytes);
    }
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t shift_;
  PipelineState keys_, values_;
  DeferredSignal<RowCopies, Barrier> loads_;
};

__device__ uint4 load_shared(uint32_t from) {
  uint4 r;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(from));
  return r;
}
__device__ void store_shared(uint32_t to, uint4 r) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r.x), "r"(r.y), "r"(r.z), "r"(r.w) : "memory");
}

// The eight e4m3 in two words as f16: exact.
__device__ uint4 widened(uint32_t first, uint32_t second) {
  uint4 r;
  asm("{\n"
      "  .reg .b16 a, b, c, d;\n"
      "  mov.b32 {a, b}, %4;\n"
      "  mov.b32 {c, d}, %5;\n"
      "  cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "  cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "  cvt.rn.f16x2.e4m3x2 %2, c;\n"
      "  cvt.rn.f16x2.e4m3x2 %3, d;\n"
      "}"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "r"(first), "r"(second));
  return r;
}

// Keys and values of 8 bits, row by row, which become f16 on their way: exactly. A thread widens what it copied itself,
// when it has issued the next load.
template <class Memory, int32_t kKeyDim, int32_t kValueDim>
class WideningLoader {
 public:
  using Rows = WarpRows<Memory::kKeys>;

  __device__ WideningLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage), shift_(p.args.keys.page_size.shift()) {}

  __device__ int32_t look_up(const Source& source, int32_t step) const { return Rows::look_up(source, step, shift_); }

  __device__ void load_keys(const Source& source, int32_t, int32_t slot) {
    copy<kKeyDim>(p_.args.kv.keys, p_.args.kv.key_stride, source.kv_head, slot);
    issued(Load::keys);
  }
  __device__ void load_values(const Source& source, int32_t, int32_t slot) {
    copy<kValueDim>(p_.args.kv.values, p_.args.kv.value_stride, source.kv_head, slot);
    issued(Load::values);
  }

  __device__ bool publishes_late() const { return true; }
  __device__ bool keys_must_wait() const {
    return !hopper::test_wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
  }
  __device__ void flush() {
    cp_async_wait<0>();
    widen_last();
    last_ = Load::none;
  }

 private:
  enum class Load : uint8_t { none, keys, values };

  // Four lanes have a line of a panel, eight lines go at once. Widened, the two halves of a piece lie side by side:
  // every second place in even lines, the places between in odd ones, so that no two lanes want the same bank.
  static __device__ int32_t line() { return Rows::lane() / 4; }
  static __device__ int32_t quarter() { return Rows::lane() % 4; }
  template <int32_t kDim>
  static __device__ bool has(int32_t piece) {
    return piece % panels(kDim) * kPanelColumns + quarter() * kRawColumns < kDim;
  }
  __device__ uint32_t raw(int32_t load) const { return memory_.raw(load) + threadIdx.x % kWarpgroup * 16; }

  template <int32_t kDim>
  __device__ void copy(const std::byte* rows, int64_t stride, int32_t kv_head, int32_t slot) const {
    constexpr int32_t kPanels = panels(kDim);
    const std::byte* const from = rows + int64_t{kv_head} * kDim + quarter() * kRawColumns;
    const uint32_t to = raw(turn_);
#pragma unroll
    for (int32_t i = 0; i < Rows::kCount / kRawLines; ++i) {
      const auto at = static_cast<uint32_t>(__shfl_sync(~0u, slot, i * kRawLines + line()));
      const std::byte* const row = address_of(from, at, static_cast<uint32_t>(stride));
#pragma unroll
      for (int32_t panel = 0; panel < kPanels; ++panel)
        if (has<kDim>(panel)) cp_async(to + (i * kPanels + panel) * kWarpgroup * 16, row + panel * kPanelColumns);
    }
  }

  __device__ void issued(Load load) {
    cp_async_commit();
    cp_async_wait<1>();
    widen_last();
    last_ = load;
  }

  // Into its stage; it lies where the next load will.
  __device__ void widen_last() {
    turn_ ^= 1;
    if (last_ == Load::keys) {
      hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
      widen_into<kKeyDim>(memory_.keys(keys_.stage));
      RowCopies::signal(&storage_.keys_full[keys_.stage]);
      keys_.next(Memory::kKeyStages);
    } else if (last_ == Load::values) {
      hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
      widen_into<kValueDim>(memory_.values(values_.stage));
      RowCopies::signal(&storage_.values_full[values_.stage]);
      values_.next(Memory::kValueStages);
    }
  }
  template <int32_t kDim>
  __device__ void widen_into(uint32_t panels_at) const {
    constexpr int32_t kPanels = panels(kDim), kAtOnce = Memory::kConsumers == 3 ? 2 : 4;
    const uint32_t from = raw(turn_);
    const uint32_t to = hopper::piece_at(panels_at, Rows::first_line() + line(), 2 * quarter());
#pragma unroll
    for (int32_t first = 0; first < raw_pieces(Memory::kKeys, kDim); first += kAtOnce) {
      uint4 pieces[kAtOnce];
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) pieces[i] = load_shared(from + (first + i) * kWarpgroup * 16);
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        const int32_t piece = first + i;
        if (!has<kDim>(piece)) continue;
        const uint32_t at = piece / kPanels * kRawLines * kLineBytes + piece % kPanels * Memory::kPanel;
        store_shared(to + at, widened(pieces[i].x, pieces[i].y));
        store_shared((to ^ 16) + at, widened(pieces[i].z, pieces[i].w));
      }
    }
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t shift_;
  PipelineState keys_, values_;
  Load last_ = Load::none;  // issued, and not signalled yet
  int32_t turn_ = 0;        // where the next load goes
};

template <int32_t kKeys, class Work, class Loader>
__device__ void produce_tiles(const Work& work, SharedStorage& storage, Loader& loader) {
  Tiles tiles(storage);
  TileScheduler scheduler(work, storage);
  produce<Source, Steps<kKeys>>(tiles, scheduler, threadIdx.x == 0, loader);
}

// --- the consumers

// A thread's two rows of a tile, lane / 4 of its warp's 16 and the eighth below, in its columns.
template <int32_t kValueDim>
struct Sums : Softmax {
  float out[kValueDim / 2] = {};
};

__device__ SeenByTwo seen_by(const Prefill& p, const Tile& tile, int32_t consumer) {
  SeenByTwo seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = consumer * kRowsEach + lane_row() + half * 8;
    const int32_t end = p.args.keys.causal ? tile.least_end + PackedRow(p, tile, row).query : tile.length;
    seen.first[half] = p.args.keys.causal && p.args.window >= 0 ? max(0, end - 1 - p.args.window) : 0;
    seen.end[half] = row < tile.rows ? end : 0;
  }
  return seen;
}

// A consumer's 64 rows of a tile.
//   T         queries
//   Product   what is multiplied: T, or f16 where keys and values were widened to it
template <class Memory, class T, class Product, int32_t kKeyDim, int32_t kValueDim>
class Consumer {
 public:
  static constexpr int32_t kKeys = Memory::kKeys;
  static constexpr bool kConvertsQueries = !std::is_same_v<T, Product>;

  __device__ Consumer(const Prefill& p, Memory memory, SharedStorage& storage, int32_t consumer)
      : p_(p), memory_(memory), storage_(storage), consumer_(consumer) {
    if (consumer == Memory::kConsumers - 1) warp_scheduler_barrier_arrive();  // the first one begins
  }

  // Begins to load the tile's queries; nobody reads the earlier ones any more.
  __device__ void load_queries(const Tile& tile) const {
    sync();
    if (p_.queries_in_boxes)
      load_query_boxes(tile);
    else
      load_query_rows(tile);
  }

  __device__ void wait_for_queries(const Tile& tile) {
    if (p_.queries_in_boxes) {
      hopper::wait(&storage_.queries_full[consumer_], queries_phase_);
      queries_phase_ ^= 1;
      if (!kConvertsQueries) return;
    } else {
      hopper::cp_async_wait_all();
      if (kConvertsQueries) sync();
    }
    if constexpr (kConvertsQueries) convert_queries(tile);
    hopper::fence_proxy_async();
    sync();
  }

  // All steps of a tile. When it returns, the queries are read no more, and the last values are still being summed.
  // Where all rows see all keys, and registers have room for two of them, probabilities are made of a step's scores
  // while those of the step before it are still read.
  template <class Sums>
  __device__ void fold(const Tile& tile, Sums& sums) {
    const Steps<kKeys> steps(tile);
    if (steps.first == steps.end) return;
    // Steps that every row sees whole, and in which no row's last key is.
    const int32_t first_whole = uniform((tile.last_first + kKeys - 1) / kKeys);
    const int32_t end_whole = uniform((tile.least_end + kKeys - 1) / kKeys - 1);
    float scores[kKeys / 2] = {};
    uint32_t probs[Memory::kProbs][kKeys / 4];
    constexpr int32_t kFewKeys = std::min(kKeys, 64);
    if (kFewKeys < kKeys && uniform(tile.end_key) - (steps.end - 1) * kKeys <= kFewKeys)
      first_step<kFewKeys>(tile, steps.end - 1, scores, probs[0], sums);
    else
      first_step<kKeys>(tile, steps.end - 1, scores, probs[0], sums);
    int32_t step = steps.end - 2;
#pragma unroll 1
    while (step >= steps.first) {
      if (Memory::kProbs == 2 && step < end_whole && step > max(first_whole, steps.first)) {
        whole_step(tile, step, scores, probs[0], probs[Memory::kProbs - 1], sums);
        whole_step(tile, step - 1, scores, probs[Memory::kProbs - 1], probs[0], sums);
        step -= 2;
      } else {
        issue_products(scores, probs[0], sums.out);
        masked_softmax(tile, step, scores, sums);
        hopper::wgmma_wait<0>();
        release_values();
        pack<Product>(scores, probs[0]);
        --step;
      }
    }
    wait_for_values();
    hopper::wgmma_fence();
    issue_pv(probs[0], sums.out);
  }

  // After fold(): what the last products become, and where. They are still being made while that is worked out.
  template <class Sums>
  __device__ void write(const Tile& tile, Sums& sums) {
    write_rows(tile, sums, sums.out, [&] {
      hopper::wgmma_wait<0>();
      if (tile.end_key > tile.first_key) release_values();
    });
  }

  // The same of one split of several: by who arrives last.
  template <class Sums>
  __device__ void write_split(const Tile& tile, Sums& sums) {
    const int32_t kv_heads = p_.args.kv.kv_heads;
    const int64_t slot = tile.first_slot * kv_heads + tile.kv_head;
    const SplitRows rows{.first = slot * Memory::kRows + consumer_ * kRowsEach,
                         .distance = kv_heads * Memory::kRows,
                         .rows = tile.rows - consumer_ * kRowsEach};
    const PartialColumns partial{p_.partial, rows, kValueDim, 0};
    hopper::wgmma_wait<0>();
    release_values();
    if (rows.rows <= 0) return;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) sums.sum[half] = quad_sum(sums.sum[half]);
    store_partial(partial, tile.split, sums, sums.out);
    if (!is_last_split(tile)) return;
    Softmax stats;
    float out[kValueDim / 2];
    merge_splits(partial, tile.num_splits, stats, out);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half)
      if (threadIdx.x % 4 != 0) stats.sum[half] = 0;  // four lanes' sums are a row's
    write_rows(tile, stats, out, [] {});
  }

 private:
  __device__ void load_query_boxes(const Tile& tile) const {
    if (threadIdx.x % kWarpgroup >= kWarp || !hopper::elect_one()) return;
    Barrier* const full = &storage_.queries_full[consumer_];
    hopper::arrive_expect_tx(full, Memory::kKeyPanels * kRowsEach * kLineBytes);
    const int32_t query = tile.query_row + p_.by_group(consumer_ * kRowsEach);
#pragma unroll
    for (int32_t panel = 0; panel < Memory::kKeyPanels; ++panel)
      hopper::tma_load(memory_.queries() + panel * Memory::kQueryPanel + consumer_ * kRowsEach * kLineBytes,
                       &p_.query_boxes, full, panel * kPanelColumns, tile.kv_head * p_.group, query);
  }

  __device__ void load_query_rows(const Tile& tile) const {
    constexpr int32_t kPieces = kKeyDim / 8;
    const ConstHeadRows& q = p_.args.q;
    const int32_t thread = threadIdx.x % kWarpgroup;
    for (int32_t i = thread; i < kRowsEach * kPieces; i += kWarpgroup) {
      const int32_t row = consumer_ * kRowsEach + i / kPieces, piece = i % kPieces;
      const bool exists = row < tile.rows;
      const PackedRow at_tile(p_, tile, row);
      const int64_t at = exists ? int64_t{tile.query_row + at_tile.query} * q.row_stride +
                                      (tile.kv_head * p_.group + at_tile.head) * kKeyDim + piece * 8
                                : 0;
      cp_async(hopper::piece_at(memory_.queries() + piece / 8 * Memory::kQueryPanel, row, piece % 8), q.data + at * 2,
               exists);
    }
  }

  // wait(): until the sums are there.
  template <class Wait>
  __device__ void write_rows(const Tile& tile, const Softmax& stats, const float (&out)[kValueDim / 2],
                             const Wait& wait) const {
    const AttendArgs& args = p_.args;
    float factors[2];
    int64_t at[2];
    bool exists[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const float sum = quad_sum(stats.sum[half]), row_max = stats.row_max[half] * kLn2;
      const int32_t packed = consumer_ * kRowsEach + lane_row() + half * 8;
      const PackedRow at_tile(p_, tile, packed);
      const int32_t head = tile.kv_head * p_.group + at_tile.head, row = tile.query_row + at_tile.query;
      exists[half] = packed < tile.rows;
      const float sink = exists[half] && args.sinks ? args.sinks[head] : -INFINITY;
      factors[half] = factor_of(row_max, sum, sink, args.kv.value_scale);
      at[half] = row * args.out.row_stride + head * kValueDim;
      if (exists[half] && threadIdx.x % 4 == 0) write_lse(args, row, head, row_max, sum);
    }
    wait();
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) write_row(out, half, factors[half], exists[half], at[half]);
  }

  // Of the tile's, which have two slots at least.
  __device__ bool is_last_split(const Tile& tile) const {
    const int32_t number = tile.first_slot / 2 * p_.args.kv.kv_heads + tile.kv_head;
    int32_t* const arrivals = p_.arrivals + number * Memory::kConsumers + consumer_;
    bool& is_last = storage_.is_last[consumer_];
    sync();
    if (threadIdx.x % kWarpgroup == 0) is_last = arrive_last(arrivals, 1, tile.num_splits);
    sync();
    return is_last;
  }

  // bf16 to f16, a warp its 16 rows, times a power of two that brings the greatest of them near the top of f16's range:
  // all that is not less than that by 2^29 or more stays as it is. Scores are divided by it where they are scaled
  // anyway.
  __device__ void convert_queries(const Tile& tile) {
    constexpr int32_t kPieces = Memory::kKeyPanels * 4;  // of each lane: four lines go at once
    const int32_t lane = threadIdx.x % kWarp, row = consumer_ * kRowsEach + threadIdx.x % kWarpgroup / kWarp * 16;
    const uint32_t at = memory_.queries() + row * kLineBytes + lane * 16;
    const auto place = [&](int32_t i) { return at + i / 4 * Memory::kQueryPanel + i % 4 * 4 * kLineBytes; };
    uint4 pieces[kPieces];
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) pieces[i] = load_shared(place(i));
    uint32_t greatest = 0;
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int32_t line = row + i % 4 * 4 + lane / 8, column = i / 4 * kPanelColumns + ((lane ^ line) & 7) * 8;
      const bool exists = line < tile.rows && (kKeyDim % kPanelColumns == 0 || column < kKeyDim);
      const uint32_t of_piece = greater(greater(magnitudes(pieces[i].x), magnitudes(pieces[i].y)),
                                        greater(magnitudes(pieces[i].z), magnitudes(pieces[i].w)));
      if (exists) greatest = greater(greatest, of_piece);
    }
    const uint32_t most = __reduce_max_sync(~0u, max(greatest >> 16, greatest & 0xffff)) >> 7;  // exponent + 1
    const uint32_t exponent = max(most, 16u) - 1;
    const uint32_t scale = (268 - exponent) << 7;  // as bf16: to 2^14 and more
    const __nv_bfloat162 scales = bits_as<__nv_bfloat162>(scale << 16 | scale);
    const float unscale = bits_as<float>((exponent - 14) << 23);
    factor_ = p_.args.softcap > 0 ? p_.factor : p_.factor * unscale;
    cap_scale_ = p_.cap_scale * unscale;
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      uint4& four = pieces[i];
      for (uint32_t* word : {&four.x, &four.y, &four.z, &four.w}) {
        const float2 both = __bfloat1622float2(__hmul2(bits_as<__nv_bfloat162>(*word), scales));
        *word = pair<__half>(both.x, both.y);
      }
      store_shared(place(i), four);
    }
  }
  // Of pairs, magnitudes as numbers that are compared as signed ones; what is not finite is less than all.
  static __device__ uint32_t magnitudes(uint32_t pair) { return (pair & 0x7fff7fff) + 0x00800080; }
  static __device__ uint32_t greater(uint32_t a, uint32_t b) { return __vmaxs2(a, b); }

  __device__ float factor() const { return kConvertsQueries ? factor_ : p_.factor; }
  __device__ float cap_scale() const { return kConvertsQueries ? cap_scale_ : p_.cap_scale; }

  // The step of the last keys, of which only the first kCount are there.
  template <int32_t kCount, class Sums>
  __device__ void first_step(const Tile& tile, int32_t step, float (&scores)[kKeys / 2], uint32_t (&probs)[kKeys / 4],
                             Sums& sums) {
    float(&some)[kCount / 2] = reinterpret_cast<float(&)[kCount / 2]>(scores);
    wait_for_keys();
    warp_scheduler_barrier_sync();
    hopper::wgmma_fence();
    issue_qk(some);
    warp_scheduler_barrier_arrive();
    hopper::wgmma_wait<0>();
    release_keys();
    masked_softmax(tile, step, some, sums);
    pack<Product>(some, reinterpret_cast<uint32_t(&)[kCount / 4]>(probs));
#pragma unroll
    for (int32_t i = kCount / 4; i < kKeys / 4; ++i) probs[i] = 0;
  }

  // The scores of the next keys, and the values of the last ones times their probabilities; then the scores are there.
  __device__ void issue_products(float (&scores)[kKeys / 2], const uint32_t (&probs)[kKeys / 4],
                                 float (&out)[kValueDim / 2]) {
    wait_for_keys();
    warp_scheduler_barrier_sync();
    hopper::wgmma_fence();
    issue_qk(scores);
    wait_for_values();
    hopper::wgmma_fence();
    issue_pv(probs, out);
    warp_scheduler_barrier_arrive();
    hopper::wgmma_wait<1>();
    release_keys();
  }

  // A step that all rows see whole.
  template <class Sums>
  __device__ void whole_step(const Tile& tile, int32_t step, float (&scores)[kKeys / 2],
                             const uint32_t (&before)[kKeys / 4], uint32_t (&probs)[kKeys / 4], Sums& sums) {
    issue_products(scores, before, sums.out);
    if (p_.args.softcap > 0 || !stale_softmax<Product, kKeys>(scores, factor(), sums, probs)) {
      hopper::wgmma_wait<0>();
      masked_softmax(tile, step, scores, sums);
      pack<Product>(scores, probs);
    }
    hopper::wgmma_wait<0>();
    release_values();
  }

  // Columns of neighbouring lanes are exchanged, so that four lanes store 32 bytes that lie side by side.
  __device__ void write_row(const float (&out)[kValueDim / 2], int32_t half, float factor, bool exists,
                            int64_t at) const {
    const HeadRows& rows = p_.args.out;
    const int32_t lane = threadIdx.x % 4;
    if (rows.type != p_.args.q.type) {
#pragma unroll
      for (int32_t i = 2 * half; i < kValueDim / 2; i += 4)
        for (int32_t j = 0; j < 2; ++j)
          if (exists) store(rows.type, rows.data, at + i / 4 * 8 + lane * 2 + j, out[i + j] * factor);
      return;
    }
    // Even lanes get four columns of the first of two groups of eight, odd ones of the second.
    const bool odd = lane % 2;
    std::byte* const to = rows.data + (at + odd * 8 + lane / 2 * 4) * 2;
#pragma unroll
    for (int32_t group = 0; group < kValueDim / 8; group += 2) {
      const int32_t i = group * 4 + 2 * half;
      const uint32_t first = pair<T>(out[i] * factor, out[i + 1] * factor);
      const uint32_t second = pair<T>(out[i + 4] * factor, out[i + 5] * factor);
      const uint32_t taken = __shfl_xor_sync(~0u, odd ? first : second, 1);
      if (exists) *reinterpret_cast<uint2*>(to + group * 16) = make_uint2(odd ? taken : first, odd ? second : taken);
    }
  }

  __device__ void sync() const { named_barrier_sync(1 + Memory::kConsumers + consumer_, kWarpgroup); }
  __device__ void warp_scheduler_barrier_sync() const { named_barrier_sync(1 + consumer_, 2 * kWarpgroup); }
  __device__ void warp_scheduler_barrier_arrive() const {
    hopper::named_barrier_arrive(1 + (consumer_ + 1 == Memory::kConsumers ? 0 : consumer_ + 1), 2 * kWarpgroup);
  }

  __device__ void wait_for_keys() const { hopper::wait(&storage_.keys_full[keys_.stage], keys_.phase); }
  __device__ void wait_for_values() const { hopper::wait(&storage_.values_full[values_.stage], values_.phase); }
  __device__ void release_keys() {
    if (threadIdx.x % kWarp == 0) hopper::arrive(&storage_.keys_empty[keys_.stage]);
    keys_.next(Memory::kKeyStages);
  }
  __device__ void release_values() {
    if (threadIdx.x % kWarp == 0) hopper::arrive(&storage_.values_empty[values_.stage]);
    values_.next(Memory::kValueStages);
  }

  template <int32_t kHalf>
  __device__ void issue_qk(float (&scores)[kHalf]) const {
    const uint64_t queries = hopper::wgmma_descriptor(memory_.queries() + consumer_ * kRowsEach * kLineBytes);
    const uint64_t keys = hopper::wgmma_descriptor(memory_.keys(keys_.stage));
#pragma unroll
    for (int32_t step = 0; step < kKeyDim / 16; ++step) {
      const int32_t panel = step / 4, columns = step % 4 * 32;
      hopper::wgmma_qk<Product, 2 * kHalf>(
          scores, hopper::advance_descriptor(queries, panel * Memory::kQueryPanel + columns),
          hopper::advance_descriptor(keys, panel * Memory::kPanel + columns), step > 0);
    }
    hopper::wgmma_commit();
  }

  __device__ void issue_pv(const uint32_t (&probs)[kKeys / 4], float (&out)[kValueDim / 2]) const {
    constexpr int32_t kWide = 128, kWides = kValueDim / kWide, kRest = kValueDim % kWide;
    const uint64_t values = hopper::wgmma_descriptor(memory_.values(values_.stage), Memory::kPanel);
#pragma unroll
    for (int32_t step = 0; step < kKeys / 16; ++step) {
      const auto at = [&](int32_t column) {
        return hopper::advance_descriptor(values, step * 16 * kLineBytes + column / kPanelColumns * Memory::kPanel);
      };
#pragma unroll
      for (int32_t wide = 0; wide < kWides; ++wide)
        hopper::wgmma_pv<Product, kWide>(out + wide * kWide / 2, probs + step * 4, at(wide * kWide), 1);
      if constexpr (kRest >= kPanelColumns)
        hopper::wgmma_pv<Product, kPanelColumns>(out + kWides * kWide / 2, probs + step * 4, at(kWides * kWide), 1);
      if constexpr (kRest % kPanelColumns != 0)
        hopper::wgmma_pv<Product, kRest % kPanelColumns>(out + (kValueDim - kRest % kPanelColumns) / 2,
                                                         probs + step * 4, at(kValueDim - kRest % kPanelColumns), 1);
    }
    hopper::wgmma_commit();
  }

  template <int32_t kHalf, class Sums>
  __device__ void masked_softmax(const Tile& tile, int32_t step, float (&scores)[kHalf], Sums& sums) const {
    constexpr int32_t kCount = 2 * kHalf;
    float rescale[2];
    if (p_.args.softcap > 0) cap<kCount>(scores, p_.args.softcap, cap_scale());
    const int32_t first = step * kKeys;
    if (first < tile.last_first) mask_before<kCount>(scores, seen_by(p_, tile, consumer_), first);
    if (first + kKeys > tile.least_end) mask_after<kCount>(scores, seen_by(p_, tile, consumer_), first);
    online_softmax<kCount>(scores, factor(), sums, rescale);
    if (!__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1 || !(sums.sum[0] + sums.sum[1] >= 0))) return;
    hopper::wgmma_wait<0>();
#pragma unroll
    for (int32_t i = 0; i < kValueDim / 2; ++i) sums.out[i] *= rescale[i / 2 % 2];
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t consumer_;
  PipelineState keys_, values_;
  uint32_t queries_phase_ = 0;
  float factor_ = 0, cap_scale_ = 0;  // where queries are converted
};

// The next tile's queries come while this one's results are made and written.
template <class T, class Product, int32_t kKeyDim, int32_t kValueDim, class Memory>
__device__ void consume(const Prefill& p, Memory memory, SharedStorage& storage, int32_t number) {
  Consumer<Memory, T, Product, kKeyDim, kValueDim> consumer(p, memory, storage, number);
  Tiles tiles(storage);
  const Tile* tile = tiles.take();
  if (tile) consumer.load_queries(*tile);
  while (tile) {
    consumer.wait_for_queries(*tile);
    Sums<kValueDim> sums;
    consumer.fold(*tile, sums);
    const Tile* const next = tiles.take();
    if (next) consumer.load_queries(*next);
    if (Memory::kSplits && uniform(tile->num_splits) > 1)
      consumer.write_split(*tile, sums);
    else
      consumer.write(*tile, sums);
    tiles.release();
    tile = next;
  }
}

template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
using LayoutOf = Layout<kKeyDim, kValueDim, !std::is_same_v<T, Stored>, kSplits>;

//   T        queries
//   Stored   keys and values: T, or what has 8 bits
template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
__global__ void __launch_bounds__(LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>::kThreads, 1)
    prefill_kernel(const __grid_constant__ Prefill p) {
  if (!QUIRE_HOPPER) return;  // and so nothing is made of the rest
  using Memory = LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>;
  constexpr bool kWidens = !std::is_same_v<T, Stored>;
  using Product = std::conditional_t<kWidens, __half, T>;
  extern __shared__ __align__(1024) std::byte shared[];  // and nothing before it: kernel_from_base()
  const Memory memory;
  SharedStorage& storage = *reinterpret_cast<SharedStorage*>(shared + Memory::kBytes);
  const KeyView& keys = p.args.keys;
  const int32_t live = *keys.live;
  const bool cached = live < kMostCached;
  for (int32_t b = threadIdx.x; cached && b <= live; b += Memory::kThreads) storage.first_rows[b] = keys.cu_q[b];
  if (threadIdx.x == 0) init_barriers<Memory>(storage, p.box > 0);
  __syncthreads();
  const bool splits = kSplits && live < kMostCached / 2;
  int32_t* const plan = storage.first_rows + kMostCached / 2;
  if (splits) plan_splits<Memory>(p, live, storage, plan);
  const Work<Memory> work{p, cached ? storage.first_rows : keys.cu_q, splits ? plan : nullptr, live};
  write_empty_rows(
      p.args, live, [&](int32_t b) { return live ? work.first_rows[b] : 0; },
      [](int32_t) { return false; },  // of those without keys, tiles
      threadIdx.x, blockDim.x);
  const int32_t warpgroup = uniform(threadIdx.x / kWarpgroup);
  if (warpgroup == 0) {
    hopper::warpgroup_reg_dealloc<Memory::kProducerRegisters>();
    if constexpr (kWidens) {
      WideningLoader<Memory, kKeyDim, kValueDim> loader(p, memory, storage);
      produce_tiles<Memory::kKeys>(work, storage, loader);
    } else if (p.box == 0) {
      RowLoader<Memory, kKeyDim, kValueDim> loader(p, memory, storage);
      produce_tiles<Memory::kKeys>(work, storage, loader);
    } else if (threadIdx.x < kWarp) {
      const auto produce_boxes = [&]<int32_t kBoxes>() {
        BoxLoader<Memory, kBoxes> loader(p, memory, storage);
        produce_tiles<Memory::kKeys>(work, storage, loader);
      };
      constexpr int32_t kMostBoxes = Memory::kKeys / kPrefillLeastBox;
      if (p.box == Memory::kKeys)
        produce_boxes.template operator()<1>();
      else if (p.box == Memory::kKeys / 2)
        produce_boxes.template operator()<2>();
      else
        produce_boxes.template operator()<kMostBoxes>();
    }
  } else {
    hopper::warpgroup_reg_alloc<Memory::kConsumerRegisters>();
    consume<T, Product, kKeyDim, kValueDim>(p, memory, storage, warpgroup - 1);
  }
}

// --- the host's side

template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim, bool kSplits>
void launch_kernel(Prefill p, int32_t blocks, cudaStream_t stream) {
  using Memory = LayoutOf<T, Stored, kKeyDim, kValueDim, kSplits>;
  if (p.box > 0) {
    p.key_boxes = tensor_map(p.args.kv, Rows::keys, p.box);
    p.value_boxes = tensor_map(p.args.kv, Rows::values, p.box);
  }
  if (p.queries_in_boxes) p.query_boxes = tensor_map(p.args.q, p.group, kRowsEach / p.group);
  constexpr size_t kShared = kSharedBytes<Memory>;
  static_assert(kShared <= 227 * 1024);
  static const auto kernel =
      kernel_from_base(prefill_kernel<T, Stored, kKeyDim, kValueDim, kSplits>, kShared, kPrefillSharedBase);
  kernel<<<blocks, Memory::kThreads, kShared, stream>>>(p);
  check_cuda(cudaGetLastError(), "attention was not launched");
}

template <class T, class Stored, int32_t kKeyDim, int32_t kValueDim>
void launch(const Prefill& p, bool splits_keys, int32_t blocks, cudaStream_t stream) {
  if (splits_keys)
    launch_kernel<T, Stored, kKeyDim, kValueDim, true>(p, blocks, stream);
  else
    launch_kernel<T, Stored, kKeyDim, kValueDim, false>(p, blocks, stream);
}

template <class T, class Stored>
void launch(const Prefill& p, bool splits_keys, int32_t blocks, cudaStream_t stream) {
  switch (p.args.kv.key_dim) {
    case 64:
      launch<T, Stored, 64, 64>(p, splits_keys, blocks, stream);
      break;
    case 96:
      launch<T, Stored, 96, 96>(p, splits_keys, blocks, stream);
      break;
    case 128:
      launch<T, Stored, 128, 128>(p, splits_keys, blocks, stream);
      break;
    case 192:
      if constexpr (std::is_same_v<T, Stored>) launch<T, T, 192, 128>(p, splits_keys, blocks, stream);
      break;
    default:
      launch<T, Stored, 256, 256>(p, splits_keys, blocks, stream);
  }
}

template <class T>
void launch(const Prefill& p, bool splits_keys, int32_t blocks, cudaStream_t stream) {
  if (p.args.kv.type == Dtype::f8e4m3)
    launch<T, __nv_fp8_e4m3>(p, splits_keys, blocks, stream);
  else
    launch<T, T>(p, splits_keys, blocks, stream);
}

}  // namespace

void prefill(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const float scale = args.scale * args.kv.key_scale;
  const int32_t group = args.q.heads / args.kv.kv_heads;
  const Prefill p{.key_boxes = {},
                  .value_boxes = {},
                  .query_boxes = {},
                  .args = args,
                  .queries_in_boxes = kRowsEach % group == 0,
                  .group = group,
                  .box = choice.box,
                  .next = args.arena->counts(Buf::split_next_tile),
                  .factor = args.softcap > 0 ? kLog2e : scale * kLog2e,
                  .cap_scale = args.softcap > 0 ? scale / args.softcap : 0,
                  .by_group = GroupDivider::by(group),
                  .partial = PartialResults::in(*args.arena),
                  .arrivals = args.arena->counts(Buf::split_arrivals)};
  if (args.q.type == Dtype::bf16)
    launch<__nv_bfloat16>(p, choice.splits_keys, choice.blocks, stream_of(exec));
  else
    launch<__half>(p, choice.splits_keys, choice.blocks, stream_of(exec));
}

}  // namespace quire::attn::cuda
