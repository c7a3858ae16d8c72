// Latent keys (MLA, absorbed): one kv head for all heads, a row of 576 columns whose first 512 are the value, bf16, f16
// or e4m3, which is widened to f16 on its way; any number of queries, of chains or of trees. With 128 heads a key is
// used 128 times for each query, so all that counts is that the tensor cores never wait. Which rows and keys a thread
// block takes, see latent_scheduler_cuda.cuh.
//
// The sums of 64 x 512 fill half of all registers, so two consumers have a half of the columns each. A tile is 64 keys,
// and tiles go in pairs, which are all that shared memory has room for:
//
//   producer   keys into two stages, by boxes of TMA or, when pages are smaller than the least box, rows have branches
//              or keys are widened, row by row; queries of the next split as soon as the last scores of this one are
//              there
//   even       S0 = Q K0^T   softmax   O[:, :256] += P0 V0            waits for P1   += P1 V1
//   odd                      S1 = Q K1^T   O[:, 256:] += P0 V0 under the softmax     += P1 V1
//
// Each consumer has the scores and the softmax of every second tile, and so one's softmax is made under the other's
// products. Probabilities go to the other through shared memory, the rows' maxima with them, in turns.
//
// V is what K is: the same shared memory, whose lines are the dimension that is summed over. Each panel of 64 columns
// has a barrier of its own, so products begin when the first is there, and a stage's halves are free as each consumer
// has done with its own. Where two blocks go through the same keys as a pair (a cluster), each loads every second panel
// for both.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attn/attend_cuda.cuh"
#include "attn/gpu_sizes.h"
#include "attn/latent_scheduler_cuda.cuh"
#include "attn/softmax_cuda.cuh"
#include "attn/split_rows_cuda.cuh"
#include "attn/tensor_map.h"
#include "attn/widened_cuda.cuh"
#include "attn/work_ring_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda::latent {
namespace {

using namespace hopper;

constexpr int32_t kKeyDim = kLatentKeyDim, kValueDim = kLatentValueDim;
constexpr int32_t kPanelBytes = kKeys * kLineBytes, kPanels = kKeyDim / kPanelColumns;
constexpr int32_t kTileBytes = kPanels * kPanelBytes;  // 64 rows of queries, or 64 keys
static_assert(kRows == kKeys, "queries and keys have tiles of one size");
static_assert(kLatentLeastBox == kKeys, "a box is a tile of keys");
constexpr int32_t kStages = 2;
constexpr int32_t kColumns = kValueDim / 2;  // of values, for each of the consumers
constexpr int32_t kColumnPanels = kColumns / kPanelColumns;
constexpr int32_t kPieces = kLineBytes / 16;

constexpr int32_t kThreads = 3 * kWarpgroup, kWarps = kThreads / kWarp;
constexpr int32_t kConsumerThreads = 2 * kWarpgroup;  // threads of both

//   T        queries
//   Stored   keys: T, or what has 8 bits
//   kTrees   whether rows may have branches; where there are none, nothing is made for them
template <class T, class Stored, bool kHasTrees>
struct Kind {
  using Query = T;
  static constexpr bool kWidens = !std::is_same_v<T, Stored>, kTrees = kHasTrees;
  using Product = std::conditional_t<kWidens, __half, T>;  // what is multiplied
  static constexpr bool kConvertsQueries = !std::is_same_v<T, Product>;
  static constexpr int32_t kProducerRegisters = kWidens ? 72 : 40, kConsumerRegisters = kWidens ? 216 : 232;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 65536 / kThreads / 8 * 8 * 3,
                "more registers than there are");
};

// Named barriers: probabilities of an even tile and of an odd one; then both consumers' and, two, each one's own.
enum : int32_t { kEvenReady = 1, kOddReady, kAllConsumers, kOwnWarpgroup };

// The panels in the order in which they come and are multiplied: the values' half is free first.
__device__ constexpr int32_t panel_at(int32_t turn) { return (turn + kColumnPanels) % kPanels; }

struct Latent {
  AttendArgs args;
  CUtensorMap map;  // of the keys, in boxes; not used when they are gathered
  int32_t box;      // slots that one copy brings, a tile's; 0: gathered
  Place place;
  Cut cut;
  bool splits_keys, deals_tiles;
  bool reads_once;         // no two blocks have the same keys, but those of a pair
  float factor;            // of scores, to powers of two
  float cap_scale;         // with a softcap: of scores, to its argument
  int32_t split_rows;      // room for each split in the workspace
  PartialResults partial;  // room for two of each thread block
  int32_t* arrivals;       // one for each thread block: of the tile that it has the first keys and others the rest of

  __device__ bool shares_loads() const { return place.pair > 1 && box > 0; }
};

// --- the thread block

constexpr int32_t kSplitRing = 2;

struct alignas(1024) Shared {
  std::byte queries[kTileBytes];
  std::byte keys[kStages][kTileBytes];
  std::byte probs[kPanelBytes];
  Barrier full[kStages][kPanels], empty[kStages][2];  // empty: the half of each consumer
  Barrier queries_full, queries_empty;
  WorkRing<Split, kSplitRing> splits;
  bool is_last;
  float row_max[kRows], rescale[kRows];  // of probs: what they are relative to, and sums before them are multiplied by
  float last_max[kRows], sum[2][kRows];  // of a split; of each consumer's tiles
  float unscale[kRows / 16];             // of scores of 16 queries each that were converted
  bool is_dealt;
  KeyScheduler key_scheduler;
  RowScheduler row_scheduler;
};
static_assert(sizeof(Counts<kWarps>) + (kLatentMostSequences + 1) * sizeof(int32_t) <= kStages * kTileBytes,
              "the plan is made in the keys' place");
static_assert(sizeof(Shared) <= 227 * 1024);

// Where operands of products lie. Shared memory begins after what is the system's own, and choose_gpu() has asked the
// device how much that is: that the compiler knows the addresses spares registers and instructions for them.
constexpr uint32_t kSharedBase = kLatentSharedBase, kQueriesAt = kSharedBase + offsetof(Shared, queries),
                   kProbsAt = kSharedBase + offsetof(Shared, probs);
__device__ constexpr uint32_t keys_at(int32_t stage) {
  return kSharedBase + static_cast<uint32_t>(offsetof(Shared, keys)) + stage * kTileBytes;
}

// What a thread block knows of its work.
struct Job {
  const Latent& d;
  Shared& shared;
};

__device__ int32_t lane_of() { return threadIdx.x % kWarp; }

// The stages' phases, a bit each. A split's tiles have the stages in turn, from the first on.
struct Phases {
  uint32_t bits = 0;
  __device__ uint32_t of(int32_t stage) const { return bits >> stage & 1; }
  __device__ void next(int32_t stage) { bits ^= 1u << stage; }
};

// --- the producer

// By one thread.
template <bool kTrees>
__device__ bool next_split(const Job& job, Split& split) {
  return job.shared.is_dealt ? job.shared.row_scheduler.next<kTrees>(job.d.args, job.d.cut, job.d.place, split)
                             : job.shared.key_scheduler.next<kTrees>(job.d.args, job.d.cut, job.d.place, split);
}

// The key or, where no row sees it, the one next to it.
__device__ int32_t seen_key(const Split& split, int32_t key) {
  return min(max(key, split.loaded.first), split.loaded.end - 1);
}

// Where a key lies: the entry of the sequence's table, or the slot of a branch; then the slot, less than zero where no
// row has the place. kEarly: while the kernel before may still run.
template <bool kTrees, bool kEarly>
__device__ int32_t look_up_key(const Job& job, const Split& split, int32_t key) {
  const KeyView& keys = job.d.args.keys;
  const int32_t seen = seen_key(split, key);
  if (kTrees && seen >= split.sequence.length()) {
    const int32_t first_row = split.sequence.first_row + split.row_block * kRows / job.d.args.q.heads;
    return slot_behind_pages(keys, seen - split.sequence.length(), split.branch, first_row, split.sequence.last_row);
  }
  const int32_t* const entry = &split.sequence.pages[seen >> keys.page_size.shift()].value;
  return kEarly ? read_early(entry) : *entry;
}
template <bool kTrees>
__device__ int32_t slot_of_key(const Job& job, const Split& split, int32_t entry, int32_t key) {
  if (kTrees && key >= split.sequence.length()) return entry;
  return slot_in_page(entry, job.d.args.keys.page_size.shift(), key);
}

// Copies of whole tiles by TMA, the panels shared out among the warps, of each of which one lane issues. Tiles further
// on are asked for into the second cache: shared memory has no room for as many bytes as memory must have under way.
class BoxLoader {
 public:
  using Pages = int32_t;
  static constexpr int32_t kAhead = 2;  // tiles

  __device__ explicit BoxLoader(const Job& job)
      : job_(job),
        warp_(uniform(threadIdx.x / kWarp)),
        rank_(job.d.place.rank()),
        policy_(job.d.reads_once ? evict_first_policy() : evict_normal_policy()) {}

  template <bool kEarly>
  __device__ Pages look_up(const Split& split, int32_t tile) const {
    return look_up_key<false, kEarly>(job_, split, tile * kKeys);
  }

  __device__ void prefetch(const Split& split, int32_t tile, int32_t end, Pages page) const {
    const int32_t slot = slot_of_key<false>(job_, split, page, tile * kKeys);
    if (tile < end && elect_one()) {
#pragma unroll
      for (int32_t i = 0; i < kTurns; ++i)
        if (has(i) && is_own(i))
          tma_prefetch_by_policy(&job_.d.map, panel_at(turn(i)) * kPanelColumns, 0, slot, policy_);
    }
    __syncwarp();
  }

  __device__ void load(const Split& split, int32_t tile, Pages page, int32_t stage, uint32_t phase) const {
    const bool exists = (tile + 1) * kKeys > split.loaded.first && tile * kKeys < split.loaded.end;
    const int32_t slot = slot_of_key<false>(job_, split, page, tile * kKeys);
#pragma unroll
    for (int32_t i = 0; i < kTurns; ++i) {
      if (!has(i)) continue;
      wait(&job_.shared.empty[stage][i == 0], phase ^ 1);
      if (elect_one()) load_panel(exists, slot, stage, panel_at(turn(i)), is_own(i));
      __syncwarp();
    }
  }

 private:
  static constexpr int32_t kLoadingWarps = kWarpgroup / kWarp, kTurns = (kPanels + kLoadingWarps - 1) / kLoadingWarps;
  static_assert(kLoadingWarps == kColumnPanels, "a warp's first panel is of the values' half that is free first");

  // The warp's panels, and those that it loads for the pair.
  __device__ int32_t turn(int32_t i) const { return warp_ + i * kLoadingWarps; }
  __device__ bool has(int32_t i) const { return turn(i) < kPanels; }
  __device__ bool is_own(int32_t i) const { return !job_.d.shares_loads() || (turn(i) + i) % 2 == rank_; }

  __device__ void load_panel(bool exists, int32_t slot, int32_t stage, int32_t panel, bool is_own) const {
    const uint32_t to = shared_address(job_.shared.keys[stage]) + panel * kPanelBytes;
    Barrier* const full = &job_.shared.full[stage][panel];
    arrive_expect_tx(full, exists ? kPanelBytes : 0);
    if (!exists || !is_own) return;
    if (job_.d.shares_loads())
      tma_load_multicast(to, &job_.d.map, full, panel * kPanelColumns, 0, slot, 3, policy_);
    else
      tma_load(to, &job_.d.map, full, panel * kPanelColumns, 0, slot);
  }

  const Job& job_;
  const int32_t warp_, rank_;
  const uint64_t policy_;
};

// Copies row by row, eight threads for each. In the place of keys that no row sees comes the one next to them; zeros
// where there is none.
template <bool kTrees>
class RowLoader {
 public:
  static constexpr int32_t kAtOnce = kWarpgroup / kPieces, kAhead = 0;
  struct Pages {
    int32_t of[kKeys / kAtOnce];
  };

  __device__ explicit RowLoader(const Job& job) : job_(job) {}

  template <bool kEarly>
  __device__ Pages look_up(const Split& split, int32_t tile) const {
    Pages pages;
#pragma unroll
    for (int32_t i = 0; i < kKeys / kAtOnce; ++i)
      pages.of[i] = look_up_key<kTrees, kEarly>(job_, split, key_at(tile, i));
    return pages;
  }

  __device__ void load(const Split& split, int32_t tile, const Pages& pages, int32_t stage, uint32_t phase) const {
    const kv::LayerKv& kv = job_.d.args.kv;
    const std::byte* from[kKeys / kAtOnce];
    bool exists[kKeys / kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kKeys / kAtOnce; ++i) {
      const int32_t slot = slot_of_key<kTrees>(job_, split, pages.of[i], seen_key(split, key_at(tile, i)));
      exists[i] = !kTrees || slot >= 0;
      from[i] = address_of(kv.keys + piece() * 16, exists[i] ? slot : 0, static_cast<uint32_t>(kv.key_stride) * 2);
    }
    const uint32_t to = piece_at(shared_address(job_.shared.keys[stage]), line(), piece());
#pragma unroll
    for (int32_t turn = 0; turn < kPanels; ++turn) {
      const int32_t panel = panel_at(turn);
      if (turn == 0 || turn == kColumnPanels) wait(&job_.shared.empty[stage][turn == 0], phase ^ 1);
#pragma unroll
      for (int32_t i = 0; i < kKeys / kAtOnce; ++i)
        copy(to + panel * kPanelBytes + i * kAtOnce * kLineBytes, from[i] + panel * kLineBytes, exists[i]);
      cp_async_arrive(&job_.shared.full[stage][panel]);
    }
  }

 private:
  static __device__ int32_t piece() { return threadIdx.x % kPieces; }
  static __device__ int32_t line() { return threadIdx.x / kPieces; }
  static __device__ int32_t key_at(int32_t tile, int32_t i) { return tile * kKeys + line() + i * kAtOnce; }
  static __device__ void copy(uint32_t to, const std::byte* from, bool exists) {
    if constexpr (kTrees)
      cp_async(to, from, exists);
    else
      cp_async(to, from);
  }

  const Job& job_;
};

// Keys of 8 bits, row by row, which become f16 on their way through registers: shared memory has no room for them as
// they are stored. Some panels are under way while one is widened, and whole rows further on into the second cache.
template <bool kTrees>
class WideningLoader {
 public:
  static constexpr int32_t kAhead = 2;  // tiles
  struct Pages {
    int32_t of[2];
  };

  __device__ explicit WideningLoader(const Job& job) : job_(job) {}

  template <bool kEarly>
  __device__ Pages look_up(const Split& split, int32_t tile) const {
    Pages pages;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) pages.of[i] = look_up_key<kTrees, kEarly>(job_, split, key_at(tile, i));
    return pages;
  }

  __device__ void prefetch(const Split& split, int32_t tile, int32_t end, const Pages& pages) const {
    if (tile >= end || quarter() != 0) return;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i)
      if (const std::byte* const from = row_at(split, tile, pages, i)) bulk_prefetch(from, kKeyDim);
  }

  __device__ void load(const Split& split, int32_t tile, const Pages& pages, int32_t stage, uint32_t phase) const {
    constexpr int32_t kUnderWay = 3;  // panels
    const std::byte* from[2];
    uint4 raw[kUnderWay][2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) from[i] = row_at(split, tile, pages, i);
    const auto fetch = [&](int32_t turn) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const std::byte* const piece = from[i] + panel_at(turn) * kPanelColumns + quarter() * 16;
        raw[turn % kUnderWay][i] = from[i] ? __ldcg(reinterpret_cast<const uint4*>(piece)) : uint4{0, 0, 0, 0};
      }
    };
#pragma unroll
    for (int32_t turn = 0; turn < kUnderWay; ++turn) fetch(turn);
    const uint32_t to = piece_at(shared_address(job_.shared.keys[stage]), line(), 2 * quarter());
#pragma unroll
    for (int32_t turn = 0; turn < kPanels; ++turn) {
      if (turn == 0 || turn == kColumnPanels) wait(&job_.shared.empty[stage][turn == 0], phase ^ 1);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint4& piece = raw[turn % kUnderWay][i];
        const uint32_t at = panel_at(turn) * kPanelBytes + i * kAtOnce * kLineBytes;
        store_shared(to + at, widened(piece.x, piece.y));
        store_shared((to ^ 16) + at, widened(piece.z, piece.w));
      }
      if (turn + kUnderWay < kPanels) fetch(turn + kUnderWay);
      fence_proxy_async();
      arrive(&job_.shared.full[stage][panel_at(turn)]);
    }
  }

 private:
  // Four lanes have a line of a panel. Widened, the two halves of a piece lie side by side: every second place in even
  // lines, the places between in odd ones, so that no two lanes want the same bank.
  static constexpr int32_t kAtOnce = kWarpgroup / 4;
  static __device__ int32_t quarter() { return threadIdx.x % 4; }
  static __device__ int32_t line() { return threadIdx.x / 4; }
  static __device__ int32_t key_at(int32_t tile, int32_t i) { return tile * kKeys + line() + i * kAtOnce; }

  // Null: no row has the place.
  __device__ const std::byte* row_at(const Split& split, int32_t tile, const Pages& pages, int32_t i) const {
    const kv::LayerKv& kv = job_.d.args.kv;
    const int32_t slot = slot_of_key<kTrees>(job_, split, pages.of[i], seen_key(split, key_at(tile, i)));
    return kTrees && slot < 0 ? nullptr : address_of(kv.keys, slot, static_cast<uint32_t>(kv.key_stride));
  }

  const Job& job_;
};

__device__ Row row_at(const Job& job, const Split& split, int32_t index) {
  const int32_t packed = split.row_block * kRows + index, heads = job.d.args.q.heads;
  return {index < split.rows ? split.sequence.first_row + packed / heads : -1, packed % heads};
}

// Of the warp's 16 rows, four at a time: the place of this lane's piece.
__device__ int32_t query_line(int32_t i) { return threadIdx.x / kWarp * 16 + i * 4 + lane_of() / kPieces; }
__device__ uint32_t query_piece_at(const Job& job, int32_t i, int32_t panel) {
  return piece_at(shared_address(job.shared.queries) + panel * kPanelBytes, query_line(i), lane_of() % kPieces);
}

// Each lane what it copied itself.
__device__ void convert_queries(const Job& job) {
  constexpr int32_t kOwn = 4 * kPanels;
  const auto place = [&](int32_t i) { return query_piece_at(job, i % 4, i / 4); };
  uint32_t greatest = 0;
#pragma unroll 4
  for (int32_t i = 0; i < kOwn; ++i) greatest = greater(greatest, magnitudes(load_shared(place(i))));
  const F16Scale scale = F16Scale::of(greatest);
#pragma unroll 4
  for (int32_t i = 0; i < kOwn; ++i) store_shared(place(i), scale.converted(load_shared(place(i))));
  if (lane_of() == 0) job.shared.unscale[threadIdx.x / kWarp] = scale.unscale;
}

template <bool kConverts>
__device__ void load_queries(const Job& job, const Split& split, uint32_t phase) {
  const ConstHeadRows& q = job.d.args.q;
  wait(&job.shared.queries_empty, phase ^ 1);
#pragma unroll 1
  for (int32_t i = 0; i < 4; ++i) {
    const Row row = row_at(job, split, query_line(i));
    const bool exists = row.row >= 0;
    const int64_t at = exists ? (row.row * q.row_stride + row.head * kKeyDim) * 2 + lane_of() % kPieces * 16 : 0;
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
      cp_async(query_piece_at(job, i, panel), q.data + at + (exists ? panel * kLineBytes : 0), exists);
  }
  if constexpr (kConverts) {
    cp_async_wait_all();
    convert_queries(job);
    fence_proxy_async();
    arrive(&job.shared.queries_full);
  } else {
    cp_async_arrive(&job.shared.queries_full);
  }
}

// Table entries are asked for a tile before they are needed, and looked at only then: they may come from far away. Keys
// that the kernel before may have written are read when it has ended, but come into the second cache before that.
template <class Kind, class Loader>
__device__ void produce(const Job& job) {
  constexpr int32_t kAhead = Loader::kAhead;
  const Loader loader(job);
  Publisher publisher(job.shared.splits);
  Taker splits(job.shared.splits);
  Phases phases;
  for (uint32_t queries_phase = 0;; queries_phase ^= 1) {
    if (threadIdx.x == 0) publisher.publish([&](Split& split) { return next_split<Kind::kTrees>(job, split); });
    const Split* const split = splits.take();
    if (!split) break;
    const int32_t first = uniform(split->tile), end = uniform(split->end);
    typename Loader::Pages pages[kAhead + 1];
#pragma unroll
    for (int32_t i = 0; i <= kAhead; ++i) pages[i] = loader.template look_up<true>(*split, min(first + i, end - 1));
    if constexpr (kAhead > 0)
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) loader.prefetch(*split, first + i, end, pages[i]);
    wait_and_launch_dependents();
    load_queries<Kind::kConvertsQueries>(job, *split, queries_phase);
#pragma unroll 1
    for (int32_t tile = first; tile < end; ++tile) {
      const int32_t stage = (tile - first) % kStages;
      const auto next = loader.template look_up<false>(*split, min(tile + kAhead + 1, end - 1));
      if constexpr (kAhead > 0) loader.prefetch(*split, tile + kAhead, end, pages[kAhead]);
      loader.load(*split, tile, pages[0], stage, phases.of(stage));
      phases.next(stage);
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) pages[i] = pages[i + 1];
      pages[kAhead] = next;
    }
    splits.release();
  }
  wait_and_launch_dependents();
  const AttendArgs& args = job.d.args;
  const int32_t live = *args.keys.live;
  write_empty_rows(
      args, live, [&](int32_t b) { return live ? args.keys.cu_q[b] : 0; },
      [&](int32_t b) { return !size_of_sequence<Kind::kTrees>(args, b).has_keys(); }, threadIdx.x, kWarpgroup);
  cp_async_wait_all();
}

// --- the consumers

// A thread has two rows of the tile (row_of) and, of each eight columns, two.
__device__ uint32_t consumer_thread() { return threadIdx.x - kWarpgroup; }
__device__ int32_t half_of_columns() { return consumer_thread() / kWarpgroup; }
__device__ int32_t row_of(int32_t half) { return lane_row() + half * 8; }

__device__ void wait_for_panel(const Job& job, int32_t stage, uint32_t phase, int32_t panel) {
  wait(&job.shared.full[stage][panel], phase);
  if (job.d.box == 0) fence_proxy_async();  // what was gathered did not come by TMA
}

// The consumer's half of the stage, to whoever loads into it.
__device__ void release(const Job& job, int32_t stage) {
  if (lane_of() != 0) return;
  Barrier* const empty = &job.shared.empty[stage][half_of_columns()];
  if (!job.d.shares_loads()) return arrive(empty);
  arrive_at(empty, 0);
  arrive_at(empty, 1);
}

// Values that no row sees become zeros, each consumer's own columns: what lies there may be NaN, and 0 times that is
// NaN. Scores of such keys may be anything.
__device__ void clear_unseen(const Job& job, const Keys& loaded, int32_t tile, int32_t stage) {
  constexpr int32_t kLinePieces = kColumnPanels * kPieces;
  const int32_t first = loaded.first - tile * kKeys, end = loaded.end - tile * kKeys;
  if (first <= 0 && end >= kKeys) return;
  std::byte* const own = job.shared.keys[stage] + half_of_columns() * kColumnPanels * kPanelBytes;
#pragma unroll 1
  for (int32_t i = threadIdx.x % kWarpgroup; i < kKeys * kLinePieces; i += kWarpgroup) {
    const int32_t line = i / kLinePieces, panel = i % kLinePieces / kPieces;
    if (line >= first && line < end) continue;
    *reinterpret_cast<uint4*>(own + piece_at(panel * kPanelBytes, line, i % kPieces)) = {0, 0, 0, 0};
  }
  fence_proxy_async();
  named_barrier_sync(kOwnWarpgroup + half_of_columns(), kWarpgroup);
}

using Out = float[kColumns / 2];
using Scores = float[kKeys / 2];
using Probs = uint32_t[kKeys / 4];

template <int32_t kHalf>
__device__ uint64_t values_of(int32_t stage) {
  return wgmma_descriptor(keys_at(stage) + kHalf * kColumnPanels * kPanelBytes, kPanelBytes);
}

__device__ void rescale_rows(Out& out, const float (&rescale)[2]) {
#pragma unroll
  for (int32_t i = 0; i < kColumns / 2; ++i) out[i] *= rescale[i / 2 % 2];
}

// --- a tile's scores and probabilities

// Those of its own branch not among them.
template <bool kTrees>
__device__ SeenByTwo seen_by(const Job& job, const Split& split) {
  SeenByTwo seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, split, row_of(half));
    if constexpr (kTrees) {
      if (row.row >= 0 && job.d.args.keys.branch_lengths) {
        const SeenOfTree of_row = seen_of_tree(job.d.args, split.sequence.length(), split.branch, 0, row.row);
        seen.first[half] = of_row.first;
        seen.end[half] = of_row.end;
        continue;
      }
    }
    const Span span = row.row < 0 ? Span{0, 0} : span_of(job.d.args, split.sequence, row.row);
    const Keys keys = relative(split.sequence, span.first, span.end);
    seen.first[half] = keys.first;
    seen.end[half] = keys.end;
  }
  return seen;
}

// Places of the rows' own branches.
__device__ SeenByTwo branches_of(const Job& job, const Split& split) {
  SeenByTwo branches;
  const int32_t heads = job.d.args.q.heads, first_row = split.sequence.first_row + split.row_block * kRows / heads;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, split, row_of(half));
    SeenOfTree seen{};
    if (row.row >= 0)
      seen = seen_of_tree(job.d.args, split.sequence.length(), split.branch, row.row - first_row, row.row);
    branches.first[half] = seen.branch_first;
    branches.end[half] = seen.branch_end;
  }
  return branches;
}

// A panel after the other, as they come.
template <class T>
__device__ void issue_qk(const Job& job, int32_t stage, uint32_t phase, Scores& scores) {
  const uint64_t queries = wgmma_descriptor(kQueriesAt), keys = wgmma_descriptor(keys_at(stage));
#pragma unroll
  for (int32_t turn = 0; turn < kPanels; ++turn) {
    wait_for_panel(job, stage, phase, panel_at(turn));
    wgmma_fence();
#pragma unroll
    for (int32_t step = 0; step < kPanelColumns / 16; ++step) {
      const int32_t at = panel_at(turn) * kPanelBytes + step * 32;
      wgmma_qk<T, kKeys>(scores, advance_descriptor(queries, at), advance_descriptor(keys, at), turn + step > 0);
    }
  }
  wgmma_commit();
}

// The half of V's columns that is the consumer's, with probabilities in registers or in shared memory.
template <class T, int32_t kHalf>
__device__ void issue_pv(int32_t stage, const Probs& probs, Out& out) {
  const uint64_t values = values_of<kHalf>(stage);
  wgmma_fence();
#pragma unroll
  for (int32_t step = 0; step < kKeys / 16; ++step)
    wgmma_pv_wide<T>(out, probs + 4 * step, advance_descriptor(values, step * 16 * kLineBytes), 1);
  wgmma_commit();
}

template <class T, int32_t kHalf>
__device__ void issue_pv_shared(int32_t stage, Out& out) {
  const uint64_t probs = wgmma_descriptor(kProbsAt), values = values_of<kHalf>(stage);
  wgmma_fence();
#pragma unroll
  for (int32_t step = 0; step < kKeys / 16; ++step)
    wgmma_pv_shared<T>(out, advance_descriptor(probs, step * 32), advance_descriptor(values, step * 16 * kLineBytes),
                       1);
  wgmma_commit();
}

// --- a consumer's rows of a split, against all of its tiles

template <class Kind, int32_t kHalf>
class Consumer {
 public:
  using T = typename Kind::Product;

  __device__ explicit Consumer(const Job& job) : job_(job) {}

  __device__ void fold(const Split& split, Out& out) {
    wait(&job_.shared.queries_full, queries_phase_);
    queries_phase_ ^= 1;
    fence_proxy_async();
    if constexpr (Kind::kConvertsQueries) unscale_ = job_.shared.unscale[threadIdx.x % kWarpgroup / kWarp];
    const SeenByTwo seen = seen_by<Kind::kTrees>(job_, split);
    whole_ = whole_tiles(split);
    loaded_ = {uniform(split.loaded.first), uniform(split.loaded.end)};
    Softmax softmax;
    const int32_t end = uniform(split.end);
#pragma unroll 1
    for (int32_t tile = uniform(split.tile); tile < end; tile += 2)
      if constexpr (kHalf == 0)
        fold_even(split, seen, tile, end, softmax, out);
      else
        fold_odd(split, seen, tile, end, softmax, out);
    leave_stats(softmax);
  }

 private:
  // Tiles that all rows see whole, and before which every row saw some key of the split's first.
  struct Tiles {
    int32_t first, end;
  };
  __device__ Tiles whole_tiles(const Split& split) const {
    const Keys& seen = split.seen_by_all;
    const int32_t first = split.tile * kKeys;
    const bool all_begin = max(seen.first, first) < min(seen.end, first + kKeys);
    return {uniform(split.tile + 1), uniform(all_begin && job_.d.args.softcap == 0 ? seen.end / kKeys : 0)};
  }

  // The even tile's scores are this one's, the odd one's the other's.
  __device__ void fold_even(const Split& split, const SeenByTwo& seen, int32_t tile, int32_t end, Softmax& softmax,
                            Out& out) {
    Probs probs;
    float rescale[2];
    {
      Scores scores;
      issue_qk<T>(job_, 0, phases_.of(0), scores);
      wgmma_wait<0>();
      if (tile + 2 >= end) release_queries();
      make_probs(split, seen, tile, softmax, scores, probs, rescale);
    }
    publish(probs, softmax, rescale, kEvenReady);
    clear_unseen(job_, loaded_, tile, 0);
    if (must_rescale(rescale)) rescale_rows(out, rescale);
    issue_pv<T, kHalf>(0, probs, out);
    end_products(0);
    if (tile + 1 == end) return;
    wait_for_values(1);
    take(softmax, rescale, kOddReady);
    clear_unseen(job_, loaded_, tile + 1, 1);
    if (must_rescale(rescale)) rescale_rows(out, rescale);
    issue_pv_shared<T, kHalf>(1, out);
    end_products(1);
  }

  __device__ void fold_odd(const Split& split, const SeenByTwo& seen, int32_t tile, int32_t end, Softmax& softmax,
                           Out& out) {
    const bool has_odd = tile + 1 < end;
    Scores scores;
    Probs probs;
    float rescale[2];
    if (has_odd) {
      issue_qk<T>(job_, 1, phases_.of(1), scores);
      wgmma_wait<0>();
    }
    if (tile + 2 >= end) release_queries();
    wait_for_values(0);
    take(softmax, rescale, kEvenReady);
    clear_unseen(job_, loaded_, tile, 0);
    if (must_rescale(rescale)) rescale_rows(out, rescale);
    issue_pv_shared<T, kHalf>(0, out);
    if (has_odd) {
      make_probs(split, seen, tile + 1, softmax, scores, probs, rescale);
    }
    end_products(0);
    if (!has_odd) return;
    publish(probs, softmax, rescale, kOddReady);
    clear_unseen(job_, loaded_, tile + 1, 1);
    if (must_rescale(rescale)) rescale_rows(out, rescale);
    issue_pv<T, kHalf>(1, probs, out);
    end_products(1);
  }

  __device__ void make_probs(const Split& split, const SeenByTwo& seen, int32_t tile, Softmax& softmax, Scores& scores,
                             Probs& probs, float (&rescale)[2]) const {
    const float softcap = job_.d.args.softcap, unscale = Kind::kConvertsQueries ? unscale_ : 1;
    const float factor = softcap > 0 ? job_.d.factor : job_.d.factor * unscale;
    if (tile >= whole_.first && tile < whole_.end && stale_softmax<T, kKeys>(scores, factor, softmax, probs)) {
      rescale[0] = rescale[1] = 1;
      return;
    }
    const int32_t first = tile * kKeys;
    if (softcap > 0) cap<kKeys>(scores, softcap, job_.d.cap_scale * unscale);
    if (first < split.seen_by_all.first) mask_before<kKeys>(scores, seen, first);
    if (first + kKeys > split.seen_by_all.end) {
      if (Kind::kTrees && split.branch > 0)
        mask_branches<kKeys>(scores, seen, branches_of(job_, split), first);
      else
        mask_after<kKeys>(scores, seen, first);
    }
    online_softmax<kKeys>(scores, factor, softmax, rescale);
    pack<T>(scores, probs);
  }

  // Probabilities, and what the rows are relative to and rescaled by, for the other consumer, which has done with those
  // before: its own came since. A store has two pieces of each of the warp's 16 lines.
  __device__ void publish(const Probs& probs, const Softmax& softmax, const float (&rescale)[2], int32_t ready) const {
    const int32_t lane = lane_of(), line = threadIdx.x % kWarpgroup / kWarp * 16 + lane % 16;
#pragma unroll
    for (int32_t n = 0; n < kKeys / 16; ++n)
      stmatrix_x4(piece_at(shared_address(job_.shared.probs), line, 2 * n + lane / 16),
                  {probs[4 * n], probs[4 * n + 1], probs[4 * n + 2], probs[4 * n + 3]});
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      if (lane % 4 != 0) continue;
      job_.shared.row_max[row_of(half)] = softmax.row_max[half];
      job_.shared.rescale[row_of(half)] = rescale[half];
    }
    fence_proxy_async();
    named_barrier_arrive(ready, kConsumerThreads);
  }

  // What the other one has published, of which the sums are its own.
  __device__ void take(Softmax& softmax, float (&rescale)[2], int32_t ready) const {
    named_barrier_sync(ready, kConsumerThreads);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      softmax.row_max[half] = job_.shared.row_max[row_of(half)];
      rescale[half] = job_.shared.rescale[row_of(half)];
      softmax.sum[half] *= rescale[half];
    }
  }

  static __device__ bool must_rescale(const float (&rescale)[2]) {
    return __any_sync(~0u, rescale[0] != 1 || rescale[1] != 1);
  }

  // The other one's scores saw all panels; that does not make them seen here. Before its probabilities are there: they
  // are what is waited for.
  __device__ void wait_for_values(int32_t stage) const {
#pragma unroll
    for (int32_t panel = kHalf * kColumnPanels; panel < (kHalf + 1) * kColumnPanels; ++panel)
      wait_for_panel(job_, stage, phases_.of(stage), panel);
  }

  // The stage's last ones: its half is free.
  __device__ void end_products(int32_t stage) {
    wgmma_wait<0>();
    release(job_, stage);
    phases_.next(stage);
  }

  __device__ void release_queries() const {
    if (lane_of() == 0) arrive(&job_.shared.queries_empty);
  }

  // The row's maximum, which both have, and the sum of its own tiles.
  __device__ void leave_stats(const Softmax& softmax) const {
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const float sum = quad_sum(softmax.sum[half]);
      if (lane_of() % 4 != 0) continue;
      if (kHalf == 0) job_.shared.last_max[row_of(half)] = softmax.row_max[half];
      job_.shared.sum[kHalf][row_of(half)] = sum;
    }
  }

  const Job& job_;
  Tiles whole_;
  Keys loaded_;  // the split's, in registers: what lies in shared memory is read again after every wait
  Phases phases_;
  uint32_t queries_phase_ = 0;
  float unscale_ = 1;  // where queries are converted
};

// --- what becomes of a split's sums

// Columns of neighbouring lanes are exchanged, so that each lane stores 16 bytes.
template <class T>
__device__ void write_row(const HeadRows& rows, int64_t at, bool exists, const Out& out, int32_t half, float factor) {
  const auto value = [&](int32_t group, int32_t i) { return out[4 * group + 2 * half + i] * factor; };
  if (rows.type != (std::is_same_v<T, __half> ? Dtype::f16 : Dtype::bf16)) {
#pragma unroll
    for (int32_t i = 0; i < kColumns / 4; ++i)
      if (exists) store(rows.type, rows.data, at + i / 2 * 8 + lane_of() % 4 * 2 + i % 2, value(i / 2, i % 2));
    return;
  }
#pragma unroll
  for (int32_t first = 0; first < kColumns / 8; first += 4) {  // four groups of eight columns
    uint32_t words[4];
#pragma unroll
    for (int32_t n = 0; n < 4; ++n) words[n] = pair<T>(value(first + n, 0), value(first + n, 1));
    transpose_quad(words);
    if (exists)
      *reinterpret_cast<uint4*>(rows.data + (at + (first + lane_of() % 4) * 8) * 2) = {words[0], words[1], words[2],
                                                                                       words[3]};
  }
}

template <class T>
__device__ void write_rows(const Job& job, const Split& split, const Softmax& stats, const Out& out) {
  const AttendArgs& args = job.d.args;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const Row row = row_at(job, split, row_of(half));
    const bool exists = row.row >= 0;
    const float row_max = stats.row_max[half] * kLn2, sum = stats.sum[half];
    const float sink = exists && args.sinks ? args.sinks[row.head] : -INFINITY;
    const int64_t at = row.row * args.out.row_stride + int64_t{row.head} * kValueDim + half_of_columns() * kColumns;
    write_row<T>(args.out, at, exists, out, half, factor_of(row_max, sum, sink, args.kv.value_scale));
    if (exists && half_of_columns() == 0 && lane_of() % 4 == 0) write_lse(args, row.row, row.head, row_max, sum);
  }
}

// Where a tile's splits lie. There is room for two of each worker, and the tile has that of all of its workers but the
// first: of the others none has splits of a tile before, nor of one after but the last.
__device__ SplitRows rows_of_splits(const Job& job, const Split& split) {
  const int32_t rows = job.d.split_rows, row_blocks = job.d.place.row_blocks;
  return {.first = (2 * int64_t{split.first_worker + 1} * row_blocks + job.d.place.index()) * rows,
          .distance = row_blocks * rows,
          .rows = split.rows};
}

// Whether this thread block's split is the last of its tile to arrive.
__device__ bool is_last_split(const Job& job, const Split& split) {
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  if (consumer_thread() == 0)
    job.shared.is_last = arrive_last(job.d.arrivals + split.first_worker * job.d.place.row_blocks + job.d.place.index(),
                                     1, split.num_splits);
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  return job.shared.is_last;
}

template <class T>
__device__ void finish_split(const Job& job, const Split& split, Out& out) {
  named_barrier_sync(kAllConsumers, kConsumerThreads);
  if (split.rows <= 0) return;
  Softmax stats;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = row_of(half);
    stats.row_max[half] = job.shared.last_max[row];
    stats.sum[half] = job.shared.sum[0][row] + job.shared.sum[1][row];
  }
  if (split.num_splits > 1) {
    const PartialColumns partial{job.d.partial, rows_of_splits(job, split), kValueDim, half_of_columns() * kColumns};
    store_partial(partial, job.d.place.worker() - split.first_worker, stats, out);
    if (!is_last_split(job, split)) return;
    merge_splits(partial, split.num_splits, stats, out);
  }
  write_rows<T>(job, split, stats, out);
}

template <class Kind, int32_t kHalf>
__device__ void consume(const Job& job) {
  Consumer<Kind, kHalf> consumer(job);
  Taker splits(job.shared.splits);
  while (const Split* const split = splits.take()) {
    Out out = {};
    consumer.fold(*split, out);
    finish_split<typename Kind::Query>(job, *split, out);
    splits.release();
  }
}

// --- the kernel

__device__ void init_barriers(const Latent& d, Shared& shared) {
  const int32_t loading = d.box == 0 ? kWarpgroup : 1, warps = kWarpgroup / kWarp;
  for (int32_t stage = 0; stage < kStages; ++stage) {
    for (Barrier& full : shared.full[stage]) init_barrier(&full, loading);
    for (Barrier& empty : shared.empty[stage]) init_barrier(&empty, d.shares_loads() ? 2 * warps : warps);
  }
  init_barrier(&shared.queries_full, kWarpgroup);
  init_barrier(&shared.queries_empty, 2 * warps);
  shared.splits.begin(kWarps);
  if (d.box > 0) prefetch_tensor_map(&d.map);
}

template <bool kTrees>
__device__ void plan(const Latent& d, Shared& shared) {
  const int32_t live = read_early(d.args.keys.live);
  const int32_t workers = d.place.workers();
  auto& counts = *reinterpret_cast<Counts<kWarps>*>(shared.keys);
  Line line{};
  if (d.splits_keys) line = count_units<kTrees>(d.args, d.cut, live, counts);
  const bool is_dealt = d.deals_tiles && is_better_dealt(line, workers);
  if (threadIdx.x != 0) return;
  shared.is_dealt = is_dealt;
  if (is_dealt)
    shared.row_scheduler.begin(live);
  else
    shared.key_scheduler.begin(counts, live, plan_work(line, live, workers, d.split_rows), d.place.worker());
}

template <class Kind>
__device__ void produce(const Job& job) {
  if constexpr (Kind::kWidens)
    produce<Kind, WideningLoader<Kind::kTrees>>(job);
  else if (!Kind::kTrees && job.d.box > 0)
    produce<Kind, BoxLoader>(job);
  else
    produce<Kind, RowLoader<Kind::kTrees>>(job);
}

template <class Kind>
__device__ void attend_block(const Latent& d, Shared& shared) {
  if (!d.args.keys_are_settled) griddep_wait();
  if (threadIdx.x == 0) init_barriers(d, shared);
  plan<Kind::kTrees>(d, shared);
  fence_proxy_async();  // the barriers are there, and nobody writes counts any more
  __syncthreads();      // nor reads them: their place is the keys'
  if (d.shares_loads()) cluster_sync();
  const Job job{.d = d, .shared = shared};
  if (threadIdx.x < kWarpgroup) {
    warpgroup_reg_dealloc<Kind::kProducerRegisters>();
    produce<Kind>(job);
    return;
  }
  warpgroup_reg_alloc<Kind::kConsumerRegisters>();
  griddep_wait();
  if (uniform(half_of_columns()) == 0)
    consume<Kind, 0>(job);
  else
    consume<Kind, 1>(job);
  if (d.shares_loads()) cluster_sync();  // the other block tells this one what it has done with
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, 1) latent_kernel(const __grid_constant__ Latent d) {
  if (!QUIRE_HOPPER) return;
  extern __shared__ __align__(1024) std::byte memory[];  // and nothing before it: kernel_from_base()
  attend_block<Kind>(d, *reinterpret_cast<Shared*>(memory));
}

// A block may take its place while the kernel before it in the stream ends; see decode_kernel_cuda.cuh.
template <class Kind>
void launch_kernel(const Latent& d, int32_t blocks, cudaStream_t stream) {
  static const auto kernel = kernel_from_base(latent_kernel<Kind>, sizeof(Shared), kSharedBase);
  launch_after(kernel, dim3(static_cast<uint32_t>(blocks)), kThreads, sizeof(Shared), stream, "attention", d,
               d.place.pair);
}

// T: of queries. What is widened has one kernel, trees or not: few tiles have anything of a branch.
template <class T>
void launch(const Latent& d, int32_t blocks, cudaStream_t stream) {
  if (d.args.kv.type == Dtype::f8e4m3)
    launch_kernel<Kind<T, __nv_fp8_e4m3, true>>(d, blocks, stream);
  else if (d.args.keys.branch_lengths)
    launch_kernel<Kind<T, T, true>>(d, blocks, stream);
  else
    launch_kernel<Kind<T, T, false>>(d, blocks, stream);
}

}  // namespace
}  // namespace quire::attn::cuda::latent

namespace quire::attn::cuda {

void latent_attend(const AttendArgs& args, const GpuChoice& choice, Exec& exec) {
  const MetadataArena& arena = *args.arena;
  const float scale = args.scale * args.kv.key_scale;
  const latent::Latent d{
      .args = args,
      .map = choice.box == 0 ? CUtensorMap{} : tensor_map(args.kv, Rows::keys, choice.box),
      .box = choice.box,
      .place = {.row_blocks = choice.row_blocks, .pair = choice.pair},
      .cut = latent::Cut::of(args.q.heads, choice.row_blocks, !choice.deals_tiles, args.window, args.keys.causal),
      .splits_keys = choice.splits_keys,
      .deals_tiles = choice.deals_tiles,
      .reads_once = !choice.deals_tiles && choice.row_blocks == choice.pair,
      .factor = args.softcap > 0 ? kLog2e : scale * kLog2e,
      .cap_scale = args.softcap > 0 ? scale / args.softcap : 0,
      .split_rows = latent_split_rows(args),
      .partial = PartialResults::in(arena),
      .arrivals = arena.counts(Buf::split_arrivals)};
  const cudaStream_t stream = stream_of(exec);
  if (args.q.type == Dtype::bf16)
    latent::launch<__nv_bfloat16>(d, choice.blocks, stream);
  else
    latent::launch<__half>(d, choice.blocks, stream);
}

}  // namespace quire::attn::cuda
