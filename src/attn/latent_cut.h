// How latent attention cuts its work, in numbers alone: the same text for the thread blocks of latent_cuda.cu and for
// tests on any machine.
//
//   row      a (query row, head) pair; a sequence's rows are its queries' heads, one query after the other
//   worker   thread blocks that go through the same keys at the same time, each with 64 rows of their own
//   tile     the rows that a worker takes at once, and the keys that any of them sees
//   unit     64 keys of a tile, aligned. All tiles' units are one line, which is shared out among the workers; behind
//            those of a tile that is not its sequence's last there may be some with nothing
//   branch   of a query of a tree. Behind the keys in pages come places for those of the queries that a block of 64
//   rows
//            has, whichever block it is, as many for each query as the sequence's longest branch has tokens
//   split    what a worker has of one tile
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "attn/gpu_sizes.h"
#include "attn/stream_k.h"
#include "base/device_code.h"

namespace quire::attn::cuda::latent {

// Keys of a sequence, counted from its first.
struct Keys {
  int32_t first, end;
  constexpr int32_t first_unit() const { return first / kLatentKeys; }
  constexpr int32_t units() const { return end > first ? (end + kLatentKeys - 1) / kLatentKeys - first_unit() : 0; }
};

// Queries that so many packed rows have any rows of, at most, if they begin at a multiple of their number.
constexpr int32_t queries_of_rows(int32_t rows, int32_t heads) {
  if (heads % rows == 0) return 1;
  return rows % heads == 0 ? rows / heads : (rows + heads - 2) / heads + 1;
}

// The same for all blocks of a call.
struct Cut {
  int32_t heads;
  int32_t tile_rows;  // a power of two, unless every sequence is one tile
  int32_t window;     // -1: none
  bool is_causal;
  bool is_one_tile;
  int32_t tile_shift,
      tile_queries;       // log2 of a tile's rows; so many more queries than one, at most, from one to the next
  int32_t block_queries;  // that a block of rows has any rows of, at most

  static constexpr Cut of(int32_t heads, int32_t row_blocks, bool is_one_tile, int32_t window, bool is_causal) {
    const int32_t rows = row_blocks * kLatentRows;
    return {.heads = heads,
            .tile_rows = rows,
            .window = window,
            .is_causal = is_causal,
            .is_one_tile = is_one_tile,
            .tile_shift = static_cast<int32_t>(std::bit_width(static_cast<uint32_t>(rows))) - 1,
            .tile_queries = (rows + heads - 1) / heads,
            .block_queries = queries_of_rows(kLatentRows, heads)};
  }
};

struct SequenceSize {
  int32_t queries, length;  // keys in pages
  bool has_branches = false;
  int32_t longest = 0, shortest = 0;  // branch

  constexpr bool has_keys() const { return length + longest > 0; }
};

constexpr int32_t tiles_of(const Cut& cut, const SequenceSize& size) {
  return cut.is_one_tile ? 1 : (size.queries * cut.heads + cut.tile_rows - 1) >> cut.tile_shift;
}

// Those that any row sees, of the sequence and of a tile. A tile's first are taken to be the sequence's: exact where
// there is no window.
constexpr Keys keys_of(const Cut& cut, const SequenceSize& size) {
  if (size.queries == 0) return {0, 0};
  if (size.has_branches) {
    const int32_t first = cut.window < 0 ? 0 : std::max(0, size.length + size.shortest - 1 - cut.window);
    return {std::min(first, size.length), size.length + std::min(size.queries, cut.block_queries) * size.longest};
  }
  return {cut.window < 0 || !cut.is_causal ? 0 : std::max(0, size.length - size.queries - cut.window), size.length};
}
constexpr Keys keys_of_tile(const Cut& cut, const SequenceSize& size, int32_t tile) {
  Keys keys = keys_of(cut, size);
  const int32_t rows = std::min((tile + 1) * cut.tile_rows, size.queries * cut.heads);
  if (cut.is_causal) keys.end -= size.queries - 1 - (rows - 1) / cut.heads;
  return keys;
}

// Units of a sequence's tiles before one of them. Those of causal rows have more from one to the next, and one over
// each, for what is rounded. Without a division: one thread works it out while others wait.
constexpr int32_t units_before_tile(const Cut& cut, const SequenceSize& size, int32_t tile) {
  if (tile == 0) return 0;
  const Keys keys = keys_of(cut, size);
  if (!cut.is_causal) return tile * keys.units();
  const int64_t of_first_query = size.length - size.queries + 1 - keys.first_unit() * kLatentKeys;
  const int64_t more = (int64_t{tile} * (tile + 1) / 2) * cut.tile_queries;
  return static_cast<int32_t>((tile * of_first_query + more) / kLatentKeys) + tile;
}

// The last tile sees what its sequence does.
constexpr int32_t units_of(const Cut& cut, const SequenceSize& size) {
  const int32_t units = keys_of(cut, size).units(), tiles = tiles_of(cut, size);
  return units == 0 || tiles == 1 ? units : units_before_tile(cut, size, tiles - 1) + units;
}

// Units of a sequence's tiles up to one of them, those behind it that have nothing included: where the next one begins.
constexpr int32_t units_through_tile(const Cut& cut, const SequenceSize& size, int32_t tile) {
  return tile + 1 < tiles_of(cut, size) ? units_before_tile(cut, size, tile + 1) : units_of(cut, size);
}

// The tile that has this unit of its sequence.
constexpr int32_t tile_with(const Cut& cut, const SequenceSize& size, int32_t unit) {
  return last_that(tiles_of(cut, size), [&](int32_t tile) { return units_before_tile(cut, size, tile) <= unit; });
}

// --- who has what

struct Line {
  int32_t units, longest;  // of all tiles; of one
  bool has_many_tiles;     // of one sequence
};

constexpr int32_t kSplitCost = 4;  // units that storing and merging a split take

// Whether whole tiles are better dealt out one by one than split: where there are many, or they are short. The longest
// is what dealing loses at most.
constexpr bool is_better_dealt(const Line& line, int32_t workers) {
  return line.longest <= 4 * kSplitCost + line.units / workers / 4;
}

// Either the workers have equal stretches of the line (stream-K), or each sequence, where they are one tile each, has
// as many workers of its own, which share its units.
struct WorkPlan {
  int32_t count;        // of workers
  int32_t splits_each;  // of each sequence; 0: stream-K
  StreamK stream_k;
};

// A split that others finish costs time: its sums are as many bytes as 64 keys and more, and to merge it takes as long
// as three units. So the splits of a tile are at least so much longer than they are many, and stream-K is taken only
// where it ends clearly sooner than workers of the sequences' own.
QUIRE_DEVICE inline WorkPlan plan_work(const Line& line, int32_t live, int32_t most, int32_t split_rows) {
  if (line.units == 0) return {};
  constexpr float kMergeUnits = 3;
  const float merge = kMergeUnits * static_cast<float>(split_rows) / kLatentRows;
  const auto least = static_cast<int32_t>(std::ceil(std::sqrt(static_cast<float>(line.longest) * merge)));
  const StreamK stream_k = StreamK::of(line.units, std::min(most, std::max(1, line.units / least)));
  const int32_t splits_each = line.has_many_tiles ? 0 : stream_k.count / live;
  if (splits_each > 0 && (line.longest + splits_each - 1) / splits_each <= stream_k.each + kSplitCost)
    return {.count = splits_each * live, .splits_each = splits_each, .stream_k = {}};
  return {.count = stream_k.count, .splits_each = 0, .stream_k = stream_k};
}

}  // namespace quire::attn::cuda::latent
