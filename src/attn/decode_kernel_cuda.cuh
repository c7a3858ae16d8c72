// Few queries of each sequence over many keys, K and V of 16 or 8 bits: bound by the memory, so all that counts is that
// every multiprocessor has loads under way from the first to the last moment. Many queries, too, in tiles.
//
// Split-KV: the work is one line of units, kUnit keys of a tile each, of which every worker has an equal stretch
// (decode_cut.h). A worker is a group of blocks, one for each kv head: they go through the same tokens at the same
// time, whose heads lie side by side in memory. The plan is made here from the step's lengths, so a captured graph
// stays balanced whatever they are. A worker may begin or end inside a tile; such a split goes to the workspace, and
// the block that arrives last merges the splits in the order of their keys. Where the cut is fixed a split is taken
// part by part.
//
// In a block each warp loads for itself: a tile of keys at a time comes by cp.async into stages of its own. Against it
// go the rows of queries (heads of the group x query rows), 8, 16 or 32 of them, and their softmax is the warp's own
// (decode_tile_cuda.cuh). Where there are more, 2 or 4 warps are a team: each takes 16 of the rows through the tiles of
// all of them, and barriers are only inside a team.
//
// At the end of a split, or part, the warps leave their sums in shared memory: where there is room, in a place for sums
// alone, and the next keys are on their way into all stages; else each in the stage that it has just emptied, of as
// many rows at a time as that has room for. The sums of a row's warps, and the splits of several blocks, are added by
// the thread that writes the columns.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "attn/decode_call_cuda.cuh"
#include "attn/decode_quads_cuda.cuh"
#include "attn/decode_scheduler_cuda.cuh"
#include "attn/decode_tile_cuda.cuh"
#include "attn/split_cuda.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda::decode_kernels {

constexpr int32_t kFewestStages = DecodeSizes::kFewestStages;
template <class E>
constexpr int32_t kMostStages = E::kSizes.most_stages();
template <class E>
constexpr int32_t kSumsBytesOfRow = E::kSizes.sums_bytes(1);
constexpr int32_t kRowsInTeam = DecodeSizes::kRowsInTeam;
static_assert((kMostSplitRows + kMostDecodeGroup) * kMostDecodeGroup < 1 << GroupDivider::kBits,
              "rows of a tile and the heads before them are divided exactly");

template <class E>
__device__ bool is_fixed(const Decode& d) {
  return !E::kIsPlain && d.cut.is_fixed;
}

template <class E>
__device__ bool has_place_for_sums(const Decode& d) {
  return E::kRowTiles == 1 && d.sums_rows > 0;
}

// Shared memory: the warps' stages, then the sums of parts so far if the cut is fixed, the warps' sums if they have a
// place of their own, and the sequences.
template <class E>
__device__ std::byte* totals_in(const Decode& d, std::byte* memory) {
  return memory + E::kWarps * d.stages * E::kStageBytes;
}
template <class E>
__device__ std::byte* sums_in(const Decode& d, std::byte* memory) {
  return totals_in<E>(d, memory) + (is_fixed<E>(d) ? E::kSizes.total_bytes() : 0);
}
template <class E>
__device__ SequenceWork* sequences_in(const Decode& d, std::byte* memory) {
  return reinterpret_cast<SequenceWork*>(sums_in<E>(d, memory) + d.sums_rows * kSumsBytesOfRow<E>);
}

// A warp's place in the block: its team, and which kRows rows of a split it takes.
template <class E>
struct WarpPlace {
  static constexpr bool kHasTeams = E::kRows == kRowsInTeam;
  int32_t warp, teams_warps, team, member;
  __device__ explicit WarpPlace(const Decode& d)
      : warp(static_cast<int32_t>(threadIdx.x) / kWarp),
        teams_warps(kHasTeams ? d.team : 1),
        team(warp / teams_warps),
        member(warp % teams_warps) {}

  __device__ int32_t first_row() const { return member * E::kRows; }
  __device__ int32_t first_warp() const { return warp - member; }
  __device__ void sync_team() const {
    __syncwarp();
    if (teams_warps > 1) named_barrier_sync(1 + team, teams_warps * kWarp);
  }
};

inline __device__ Row row_at(const Decode& d, const Split& split, int32_t index) {
  const int32_t in_group = split.tile_head + index;
  const int32_t query = d.by_group(in_group), row = split.tile_row + query;
  return {index < split.rows ? row : -1, split.kv_head * d.cut.group + in_group - query * d.cut.group};
}

// --- loading

// slot: of the tile's key `lane`; -1: none, which gives zeros.
template <class E>
__device__ void load_tile(const Decode& d, int32_t kv_head, int32_t slot, uint32_t stage) {
  constexpr int32_t kRowsAtOnce = kWarp / E::kPieces;
  const int32_t lane = threadIdx.x % kWarp, row = lane / E::kPieces, piece = lane % E::kPieces;
  const std::byte* keys = d.args.kv.keys + kv_head * E::kRowBytes + piece * 16;
  const std::byte* values = d.args.kv.values + kv_head * E::kRowBytes + piece * 16;
  const auto key_bytes = static_cast<uint32_t>(d.key_bytes), value_bytes = static_cast<uint32_t>(d.value_bytes);
  const uint32_t place = stage + piece_at<E>(row, piece);
  const uint64_t policy = E::kIsPlain || d.reads_once ? evict_first_policy() : evict_normal_policy();
#pragma unroll
  for (int32_t i = 0; i < E::kKeys; i += kRowsAtOnce) {
    const int32_t at = __shfl_sync(~0u, slot, row + i);
    const auto from = static_cast<uint32_t>(max(at, 0));
    const uint32_t to = piece_from<E>(place, i, 0);
    cp_async_by_policy(to, address_of(keys, from, key_bytes), at, policy);
    cp_async_by_policy(to + E::kKeys * E::kRowBytes, address_of(values, from, value_bytes), at, policy);
  }
}

// A warp's tiles, ahead of their use: of each split the keys kKeys * (warp, warp + kWarps, ...). Tile after tile goes
// to the next of the warp's stages, whatever split it is of. The warps of a team are always at the same tile of theirs,
// so where the first of them has one, the others load zeros if need be.
template <class E>
class Loader {
 public:
  static constexpr int32_t kStride = E::kWarps * E::kKeys;

  __device__ Loader(const Decode& d, const WarpPlace<E>& place, TileScheduler<E::kIsPlain>& scheduler,
                    std::byte* memory)
      : d_(d), place_(place), scheduler_(scheduler), memory_(memory) {
    next_split();
  }

  // Until here nothing but metadata was read. First the tiles that may be read while the kernel before ends. A stage is
  // left free only where the sums of a warp without a tile may need it.
  __device__ void begin_settled() {
    while (begun_ < first_tiles() && is_settled()) {
      load_next();
      ++begun_;
    }
  }
  __device__ void begin() {
    for (; begun_ < first_tiles(); ++begun_) load_next();
    is_released_ = first_tiles() == d_.stages;
  }

  // Waits for the oldest tiles that were not taken yet and begins to load others. The tiles taken before are given up.
  // Returns the tile of the team's first warp; the others' follow at warp_bytes().
  __device__ uint32_t take() {
    if (is_released_)
      wait_for_all_but<1>();
    else
      wait_for_all_but<2>();
    place_.sync_team();  // everybody's copies are there, and everybody has done with the stage that comes next
    if (!is_released_) load_next();
    is_released_ = false;
    return shared_address(stage(place_.first_warp(), loaded_));
  }

  // Gives up the tile taken last and begins to load another, as the next take() would. Of a warp without a team.
  __device__ void release() {
    __syncwarp();
    if (!is_released_) load_next();
    is_released_ = true;
  }

  __device__ uint32_t warp_bytes() const { return d_.stages * E::kStageBytes; }

  // The stage taken last: nothing is loaded into it before the next take(). In floats from the memory's begin.
  __device__ int32_t free_stage() const {
    return (place_.warp * d_.stages + loaded_) * (E::kStageBytes / static_cast<int32_t>(sizeof(float)));
  }

 private:
  // Slots of so many tiles are looked up at once, two tiles or more before they are needed: table entries may come from
  // far away.
  static constexpr int32_t kTilesOfLookUp = kWarp / E::kKeys, kLookUps = kTilesOfLookUp == 1 ? 3 : 2;
  static constexpr int32_t kNone = -1;

  // Of all stages but so many.
  template <int32_t kLess>
  __device__ void wait_for_all_but() const {
    if (d_.stages == kFewestStages)
      cp_async_wait<kFewestStages - kLess>();
    else
      cp_async_wait<kMostStages<E> - kLess>();
  }

  __device__ std::byte* stage(int32_t warp, int32_t index) const {
    return memory_ + (warp * d_.stages + index) * E::kStageBytes;
  }

  __device__ int32_t look_up_ahead(int32_t look_ups) const {
    const int32_t lane = threadIdx.x % kWarp;
    const int32_t key = key_ + (look_ups * kTilesOfLookUp + lane / E::kKeys) * kStride;
    return look_up<E::kIsPlain>(d_.args.keys, scheduler_.split, key + place_.member * E::kKeys + lane % E::kKeys);
  }

  __device__ int32_t tile_of_look_up() const {
    return static_cast<uint32_t>(key_ - scheduler_.split.first) / kStride % kTilesOfLookUp;
  }

  __device__ int32_t first_tiles() const { return d_.stages - (has_place_for_sums<E>(d_) ? 0 : 1); }

  // Whether the keys of the team's next tiles were there before this step.
  __device__ bool is_settled() const {
    const Split& split = scheduler_.split;
    int32_t end = split.length - (split.last_row - split.first_row);
    if constexpr (!E::kIsPlain) end = min(end, split.tail.begin);
    return key_ == kNone || key_ + place_.teams_warps * E::kKeys <= end;
  }

  // The next split in which the team has a tile.
  __device__ void next_split() {
    do {
      if (scheduler_.done()) {
        key_ = kNone;
        return;
      }
      scheduler_.next(d_.args, d_.cut, sequences_in<E>(d_, memory_));
      key_ = scheduler_.split.first + place_.first_warp() * E::kKeys;
    } while (key_ >= scheduler_.split.end);
#pragma unroll
    for (int32_t i = 0; i < kLookUps; ++i) slots_[i] = look_up_ahead(i);
  }

  __device__ void next_tile() {
    key_ += kStride;
    if (key_ >= scheduler_.split.end) return next_split();
    if (tile_of_look_up() > 0) return;
#pragma unroll
    for (int32_t i = 0; i + 1 < kLookUps; ++i) slots_[i] = slots_[i + 1];
    slots_[kLookUps - 1] = look_up_ahead(kLookUps - 1);
  }

  __device__ void load_next() {
    if (key_ != kNone) {
      const int32_t source = threadIdx.x % E::kKeys + tile_of_look_up() * E::kKeys;
      load_tile<E>(d_, scheduler_.split.kv_head, __shfl_sync(~0u, slots_[0], source),
                   shared_address(stage(place_.warp, loaded_)));
      next_tile();
    }
    loaded_ = loaded_ + 1 == d_.stages ? 0 : loaded_ + 1;
    cp_async_commit();  // also when there is nothing: groups are counted
  }

  const Decode& d_;
  const WarpPlace<E>& place_;
  TileScheduler<E::kIsPlain>& scheduler_;
  std::byte* memory_;
  int32_t key_;              // first of the team's tiles, or kNone
  int32_t slots_[kLookUps];  // of this lane's key in the tiles to come
  int32_t loaded_ = 0, begun_ = 0;
  bool is_released_ = false;
};

// --- one split: units of one sequence, for one kv head

template <class E>
__device__ void load_queries(const Decode& d, const Split& split, const WarpPlace<E>& place, Queries<E>& q) {
  const ConstHeadRows& rows = d.args.q;
#pragma unroll
  for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile) {
    const Row row =
        row_at(d, split, place.first_row() + row_tile * kRowsInTile + static_cast<int32_t>(threadIdx.x) % kWarp / 4);
    const bool exists = row.row >= 0;
    const auto* words = reinterpret_cast<const uint32_t*>(
        rows.data + (int64_t{max(row.row, 0)} * rows.row_stride + int64_t{row.head} * E::kDim) * 2);
    q.scale[row_tile] = d.args.scale * d.args.kv.key_scale * kLog2e;
    if constexpr (E::kIsNarrow)
      q.scale[row_tile] *= load_scaled<E>(rows.type, words, exists, row_tile, q);
    else
      load_words<E>(words, exists, row_tile, q);
  }
}

// Of the split's keys, what query row `row` sees of those around the key at `place`.
template <class E>
__device__ Seen seen_by(const Decode& d, const Split& split, int32_t row, int32_t place) {
  const Span span = span_of(d.args, split.sequence(), row);
  const auto first = static_cast<int32_t>(span.first), end = static_cast<int32_t>(span.end);
  if (is_fixed<E>(d)) {
    const Tail::Position at = position_at(split.tail, place);
    const bool is_others = at.query >= 0 && split.tile_row + at.query != row;
    return {first + place - at.position, is_others ? 0 : max(0, end - first), 0, 0};
  }
  const int32_t branch = split.length + (row - split.tile_row) * d.args.keys.most_branch_tokens;
  Seen seen;
  seen.first = max(first, split.first);
  seen.count = max(0, min(end, min(split.length, split.end)) - seen.first);
  seen.branch_first = max(branch + max(0, first - split.length), split.first);
  seen.branch_count = max(0, min(branch + end - split.length, split.end) - seen.branch_first);
  return seen;
}

// use(row_tile, row) for the rows that are there of those whose scores this thread has.
template <class E, class Use>
__device__ void for_each_own_row(const Decode& d, const Split& split, const WarpPlace<E>& place, const Use& use) {
#pragma unroll
  for (int32_t row_tile = 0; row_tile < E::kRowTiles; ++row_tile) {
    const int32_t index = place.first_row() + row_tile * kRowsInTile + static_cast<int32_t>(threadIdx.x) % kWarp / 4;
    const int32_t row = row_at(d, split, index).row;
    if (row >= 0) use(row_tile, row);
  }
}

// Keys that all of the warp's rows see: of tiles inside, which are most, nothing must be hidden.
struct Common {
  int32_t first, end;
};
template <class E>
__device__ void seen_by_all(const Decode& d, const Split& split, const WarpPlace<E>& place, Common& kept) {
  Common common{split.first, E::kIsPlain ? split.end : min(split.end, split.tail.begin)};
  const bool is_last_token = split.last_row - split.first_row == 1;
  if (!is_last_token || d.args.window >= 0 || d.args.keys.branch_lengths) {
    for_each_own_row<E>(d, split, place, [&](int32_t, int32_t row) {
      const Seen seen = seen_by<E>(d, split, row, split.first);
      common = {max(common.first, seen.first), min(common.end, seen.first + seen.count)};
    });
    common = {__reduce_max_sync(~0u, common.first), __reduce_min_sync(~0u, common.end)};
  }
  if (threadIdx.x % kWarp == 0) kept = common;
  __syncwarp();
}

template <class E>
__device__ void apply_mask(const Decode& d, const Split& split, const WarpPlace<E>& place, int32_t first_key,
                           Scores<E>& scores) {
  const int32_t lanes_key = first_key + static_cast<int32_t>(threadIdx.x) % 4 * 2;
  for_each_own_row<E>(d, split, place, [&](int32_t row_tile, int32_t row) {
    const Seen seen = seen_by<E>(d, split, row, first_key);
    for_each_score<E>(scores, row_tile, [&](float& score, int32_t key) {
      if (!seen(lanes_key + key)) score = -INFINITY;
    });
  });
}

// The places [first, end) of a split. Rows that are not there have scores, too, of zeros as queries; nobody asks for
// their results.
template <class E>
__device__ Sums<E> fold_keys(const Decode& d, const Split& split, int32_t first, int32_t last,
                             const WarpPlace<E>& place, const Queries<E>& q, Loader<E>& loader, const Common& common) {
  Sums<E> sums;
  for (int32_t team_key = first + place.first_warp() * E::kKeys; team_key < last; team_key += Loader<E>::kStride) {
    uint32_t tile = loader.take();
    const int32_t end = min(team_key + place.teams_warps * E::kKeys, last);
    for (int32_t tile_key = team_key; tile_key < end; tile_key += E::kKeys, tile += loader.warp_bytes())
#pragma unroll
      for (int32_t i = 0; i < E::kKeys; i += E::kKeysAtOnce) {
        const int32_t key = tile_key + i;
        const uint32_t keys = tile + i * E::kRowBytes;
        fold_tile<E>(
            d.args, q, keys, keys + E::kKeys * E::kRowBytes,
            [&](Scores<E>& scores) {
              if (key < common.first || key + E::kKeysAtOnce > common.end) apply_mask<E>(d, split, place, key, scores);
            },
            sums);
      }
    if (has_place_for_sums<E>(d)) loader.release();
  }
  return sums;
}

// --- results

// use(row, quad) by some thread, for all quads of `rows` rows.
template <class E, class Use>
__device__ void for_each_quad(int32_t rows, const Use& use) {
  constexpr uint32_t kQuads = E::kDim / 4;
  for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(rows) * kQuads; i += E::kThreads)
    use(i / kQuads, i % kQuads);
}

// What the warps of a block keep in shared memory beside their stages and the sequences, and where their sums are
// reduced: kRowsAtOnce of their rows at a time.
template <class E>
struct SharedStorage {
  static constexpr int32_t kRowTilesAtOnce =
      std::min<int32_t>(E::kRowTiles, E::kStageBytes / (kRowsInTile * E::kDim * sizeof(float)));
  static constexpr int32_t kRowsAtOnce = kRowTilesAtOnce * kRowsInTile;
  static_assert(kRowTilesAtOnce > 0 && E::kRowTiles % kRowTilesAtOnce == 0, "a stage has room for sums of some rows");

  StreamK stream_k;
  int32_t live;
  TileScheduler<E::kIsPlain> scheduler[E::kWarps],
      load_scheduler[E::kWarps];  // each warp's own, of its products and of its loads
  Common common[E::kWarps];
  float row_max[E::kWarps][kRowsAtOnce], sum[E::kWarps][kRowsAtOnce];
  int32_t out[E::kWarps];  // f32 [kRowsAtOnce, kDim], as place_of() says; in floats from the stages' begin
  bool is_last;
};

// What is reduced: the sums of a block's warps, of `rows` rows, each in a place of the warp's own: a free stage, which
// is the loader's again in the end, or one that is for sums alone.
template <class E>
struct WarpReduction {
  const WarpPlace<E>& place;
  int32_t rows;  // of the split
  SharedStorage<E>& storage;
  float* stages;
  int32_t sums;  // the warp's place, in floats
  bool is_for_sums_alone, is_in_use;

  __device__ float* out() const { return stages + sums; }
};

template <class E>
__device__ int32_t sums_of_warp(const Decode& d, std::byte* memory, int32_t warp) {
  return static_cast<int32_t>((sums_in<E>(d, memory) - memory) / sizeof(float)) + warp * d.sums_rows * E::kDim;
}

// From the warp's row first_row_tile * 8 on.
template <class E>
__device__ void store_sums(const WarpReduction<E>& p, const Sums<E>& sums, int32_t first_row_tile) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll
  for (int32_t i = 0; i < SharedStorage<E>::kRowTilesAtOnce; ++i) {
    const int32_t row_tile = first_row_tile + i;
    const float sum = quad_sum(sums.sum[row_tile]);
    if (lane % 4 == 0) {
      p.storage.row_max[p.place.warp][i * kRowsInTile + lane / 4] = sums.row_max[row_tile];
      p.storage.sum[p.place.warp][i * kRowsInTile + lane / 4] = sum;
    }
    store_rows<E>(sums, row_tile, p.rows - p.place.first_row() - row_tile * kRowsInTile,
                  p.out() + i * kRowsInTile * E::kDim);
  }
}

// Over all warps that took the row, which is `row` of those that they stored and the team's `member` had.
template <class E>
__device__ Quad reduced(const WarpReduction<E>& p, int32_t member, int32_t row, int32_t quad) {
  constexpr int32_t kAtOnce = 8;
  Quad total;
#pragma unroll
  for (int32_t first = 0; first < E::kWarps; first += kAtOnce) {
    Quad quads[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t w = first + i;
      if (!WarpPlace<E>::kHasTeams || (w & (p.place.teams_warps - 1)) == member)
        quads[i] = {*reinterpret_cast<const float4*>(p.stages + p.storage.out[w] + place_of<E>(row, quad * 4)),
                    p.storage.row_max[w][row], p.storage.sum[w][row]};
    }
    fold_quads(total, quads);
  }
  return total;
}

// The warps' sums are added: use(row, quad, result) by some thread, for all quads of the split's rows.
template <class E, class Use>
__device__ void reduce_warps(const WarpReduction<E>& p, const Sums<E>& sums, const Use& use) {
  constexpr int32_t kRowsAtOnce = SharedStorage<E>::kRowsAtOnce;
  if (p.is_in_use) __syncthreads();  // until everybody has read what is there
  if (threadIdx.x % kWarp == 0) p.storage.out[p.place.warp] = p.sums;
  p.place.sync_team();  // who shares the stage's keys has done with them
#pragma unroll
  for (int32_t first_row_tile = 0; first_row_tile < E::kRowTiles; first_row_tile += SharedStorage<E>::kRowTilesAtOnce) {
    store_sums<E>(p, sums, first_row_tile);
    __syncthreads();
    for_each_quad<E>(p.place.teams_warps * kRowsAtOnce, [&](int32_t index, int32_t quad) {
      const int32_t member = WarpPlace<E>::kHasTeams ? index / kRowsAtOnce : 0;
      const int32_t row_in_stage = index - member * kRowsAtOnce;
      const int32_t row = member * E::kRows + first_row_tile * kRowsInTile + row_in_stage;
      if (row < p.rows) use(row, quad, reduced<E>(p, member, row_in_stage, quad));
    });
    if (!p.is_for_sums_alone) __syncthreads();
  }
}

template <class E>
__device__ void write_quad(const Decode& d, const Split& split, int32_t index, int32_t quad, const Quad& result) {
  write_quad<E::kDim>(d.args, row_at(d, split, index), quad, result);
}

// --- splits of several blocks

template <class E>
__device__ void store_partial(const Decode& d, int32_t slot, int32_t row, int32_t quad, const Quad& result) {
  const int32_t at = slot * d.rows + row;
  __stcg(reinterpret_cast<float4*>(d.partial.out) + at * (E::kDim / 4) + quad, result.out);
  if (quad != 0) return;
  __stcg(d.partial.max + at, result.row_max);
  __stcg(d.partial.sum + at, result.sum);
}

// One after the other where the cut may be fixed: as the parts of one block are.
template <class E, int32_t kCount>
__device__ void fold_splits(Quad& total, const Quad (&quads)[kCount]) {
  if constexpr (E::kIsPlain) {
    fold_quads(total, quads);
  } else {
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const Quad one[1] = {quads[i]};
      fold_quads(total, one);
    }
  }
}

// What all blocks left, from the first part to the last. Loads of several are under way at once; in the place of those
// that are not there the last one is read again, which takes less time than the jumps around it.
template <class E>
__device__ Quad merged(const Decode& d, const Split& split, int32_t row, int32_t quad) {
  constexpr int32_t kAtOnce = E::kSizes.blocks() > 1 ? 8 : 16;  // as registers allow
  const int32_t last = split.arrivals - 1;
  const int32_t of_first = split.first_slot * d.rows + row;
  const auto* const outs = reinterpret_cast<const std::byte*>(d.partial.out) + quad * sizeof(float4);
  const auto* const row_maxes = reinterpret_cast<const std::byte*>(d.partial.max);
  const auto* const sums = reinterpret_cast<const std::byte*>(d.partial.sum);
  Quad total;
#pragma unroll 1
  for (int32_t first = 0; first <= last; first += kAtOnce) {
    Quad quads[kAtOnce];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t at = of_first + min(first + i, last) * d.rows;
      quads[i] = {__ldcg(reinterpret_cast<const float4*>(address_of(outs, at, E::kDim * sizeof(float)))),
                  __ldcg(reinterpret_cast<const float*>(address_of(row_maxes, at, sizeof(float)))),
                  __ldcg(reinterpret_cast<const float*>(address_of(sums, at, sizeof(float))))};
      if (first + i > last) quads[i].row_max = -INFINITY;
    }
    fold_splits<E>(total, quads);
  }
  return total;
}

// --- parts of one block

// A tile's sums of the parts so far. Each quad is one thread's business; of 8 rows a thread has one at most.
template <class E>
class Totals {
 public:
  __device__ explicit Totals(std::byte* memory)
      : out_(reinterpret_cast<float4*>(memory)), rest_(reinterpret_cast<float2*>(out_ + kCount)) {}

  // With the part's, which is the tile's first or follows the ones so far.
  __device__ Quad folded(int32_t row, int32_t quad, bool is_first, const Quad& part) {
    const int32_t at = row * kQuads + quad;
    Quad total;
    if (!is_first) total = kIsOne ? one_ : Quad{out_[at], rest_[at].x, rest_[at].y};
    const Quad parts[1] = {part};
    fold_quads(total, parts);
    if constexpr (kIsOne) {
      one_ = total;
    } else {
      out_[at] = total.out;
      rest_[at] = {total.row_max, total.sum};
    }
    return total;
  }

 private:
  static constexpr int32_t kQuads = E::kDim / 4, kCount = E::kRows * kQuads;
  static constexpr bool kIsOne = E::kRowTiles == 1;
  static_assert(!kIsOne || kCount <= E::kThreads);
  static_assert(kIsOne || E::kSizes.total_bytes() == kCount * (sizeof(float4) + sizeof(float2)));

  float4* out_;
  float2* rest_;
  Quad one_;
};

// --- the kernel

template <class E>
__device__ void attend_split(const Decode& d, const Split& split, const WarpPlace<E>& place, Loader<E>& loader,
                             std::byte* memory, SharedStorage<E>& storage, bool& sums_are_in_use) {
  Totals<E> totals(totals_in<E>(d, memory));
  Queries<E> q;
  load_queries<E>(d, split, place, q);
  seen_by_all<E>(d, split, place, storage.common[place.warp]);
  int32_t parts = 0, first, end = split.first;
  do {
    first = end;
    end = is_fixed<E>(d) ? min(end_of_part(split.tail, first), split.end) : split.end;
    const Sums<E> sums = fold_keys<E>(d, split, first, end, place, q, loader, storage.common[place.warp]);
    const bool has_place = has_place_for_sums<E>(d);
    const WarpReduction<E> p{.place = place,
                             .rows = split.rows,
                             .storage = storage,
                             .stages = reinterpret_cast<float*>(memory),
                             .sums = has_place ? sums_of_warp<E>(d, memory, place.warp) : loader.free_stage(),
                             .is_for_sums_alone = has_place,
                             .is_in_use = has_place && sums_are_in_use};
    sums_are_in_use = true;
    reduce_warps<E>(p, sums, [&](int32_t row, int32_t quad, const Quad& result) {
      if (!split.is_whole) return store_partial<E>(d, split.slot + parts, row, quad, result);
      const Quad total = is_fixed<E>(d) ? totals.folded(row, quad, parts == 0, result) : result;
      if (end == split.end) write_quad<E>(d, split, row, quad, total);
    });
    ++parts;
  } while (!E::kIsPlain && end < split.end);
  if (split.is_whole) return;
  if (has_place_for_sums<E>(d)) __syncthreads();
  if (threadIdx.x == 0)
    storage.is_last = arrive_last(d.arrivals + split.kv_head * d.workers + split.first_worker,
                                  is_fixed<E>(d) ? parts : 1, split.arrivals);
  __syncthreads();
  if (!storage.is_last) return;
  for_each_quad<E>(split.rows, [&](int32_t row, int32_t quad) {
    write_quad<E>(d, split, row, quad, merged<E>(d, split, row, quad));
  });
}

inline __device__ void write_rows_without_keys(const AttendArgs& args, int32_t live, const SequenceWork* seqs) {
  write_empty_rows(
      args, live, [&](int32_t b) { return seqs[b].first_row; },
      [&](int32_t b) { return seqs[b].units_before == seqs[b + 1].units_before; }, threadIdx.x, blockDim.x);
}

template <class E>
__device__ void prepare(const Decode& d, SequenceWork* seqs, SharedStorage<E>& storage) {
  const int32_t live = load_sequences<E::kWarps, E::kIsPlain>(d.args, d.cut, seqs);
  if (threadIdx.x == 0) {
    storage.live = live;
    storage.stream_k = StreamK::of(seqs[live].units_before, d.workers);
  }
  __syncthreads();
}

template <class E>
__global__ void __launch_bounds__(E::kThreads, E::kSizes.blocks()) decode_kernel(const __grid_constant__ Decode d) {
  extern __shared__ __align__(1024) std::byte memory[];
  __shared__ SharedStorage<E> storage;
  SequenceWork* const seqs = sequences_in<E>(d, memory);
  if (!d.args.keys_are_settled) griddep_wait();
  prepare<E>(d, seqs, storage);
  if (d.worker() >= storage.stream_k.count) {
    wait_and_launch_dependents();
  } else {
    const WarpPlace<E> place(d);
    auto &scheduler = storage.scheduler[place.warp], &load_scheduler = storage.load_scheduler[place.warp];
    load_scheduler.begin(d.cut, seqs, storage.live, storage.stream_k, d.args.kv.kv_heads);
    scheduler.begin(load_scheduler);
    Loader<E> loader(d, place, load_scheduler, memory);
    if (d.keys_are_old) loader.begin_settled();
    wait_and_launch_dependents();
    loader.begin();
    bool sums_are_in_use = false;
    while (!scheduler.done()) {
      scheduler.next(d.args, d.cut, seqs, storage.stream_k, d.workers);
      if (scheduler.split.first >= scheduler.split.end) continue;
      attend_split<E>(d, scheduler.split, place, loader, memory, storage, sums_are_in_use);
    }
  }
  write_rows_without_keys(d.args, storage.live, seqs);
}

template <class E>
void launch(const Decode& d, const GpuChoice& choice, cudaStream_t stream) {
  static_assert(sizeof(SharedStorage<E>) <= DecodeSizes::kMostStorageBytes);
  const auto kernel = decode_kernel<E>;
  const size_t shared = E::kSizes.shared_bytes(choice.stages, d.batch, choice.is_fixed, choice.sums_rows);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
             "attention needs ", shared, " bytes of shared memory");
  // Metadata are read before the kernel before has ended if the caller says that they are settled; for all else (q, K
  // and V, the workspace) a block waits, and only then allows the same to the next. So when a block starts, all kernels
  // of the stream but the one before its own have ended.
  launch_after(kernel, dim3(static_cast<uint32_t>(choice.blocks)), E::kThreads, shared, stream, "attention", d);
}

template <class Stored, int32_t kDim, bool kPlain>
void launch_for_rows(const Decode& d, const GpuChoice& choice, cudaStream_t stream) {
  if (choice.row_tiles == 1) return launch<Elements<Stored, kDim, 1, kPlain>>(d, choice, stream);
  if constexpr (sizeof(Stored) > 1)
    if (choice.row_tiles == 4) return launch<Elements<Stored, kDim, 4, kPlain>>(d, choice, stream);
  launch<Elements<Stored, kDim, kRowsInTeam / kRowsInTile, kPlain>>(d, choice, stream);
}

template <class Stored, int32_t kDim>
void launch_cut(const Decode& d, const GpuChoice& choice, cudaStream_t stream) {
  if (d.reads_once && !choice.is_fixed)
    launch_for_rows<Stored, kDim, true>(d, choice, stream);
  else
    launch_for_rows<Stored, kDim, false>(d, choice, stream);
}

template <class Stored>
void launch_for(const Decode& d, const GpuChoice& choice, cudaStream_t stream) {
  if (d.args.kv.key_dim == 64)
    launch_cut<Stored, 64>(d, choice, stream);
  else
    launch_cut<Stored, 128>(d, choice, stream);
}

}  // namespace quire::attn::cuda::decode_kernels
