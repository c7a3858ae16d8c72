// How decode cuts its work, in numbers alone: the same text for the blocks of decode_kernel_cuda.cuh and for tests on
// any machine.
//
//   row      a (query row, head) pair of one kv head; a sequence's rows are its queries' heads, one query after the
//            other
//   tile     some rows of a sequence, 2^tile_shift at most, and the line of their keys
//   place    of a key in a tile's line: its position, as long as the key is in pages. Behind these come the branches of
//            the tile's queries, each seen by its own query's rows alone
//   unit     kUnit places of a tile, by which the work is shared out (stream_k.h); a sequence's tiles follow each
//            other, and behind a tile's last place there may be units with nothing
//   worker   as many blocks as there are kv heads; each has the worker's units for one kv head
//   split    what a worker has of one tile
//
// Where the cut is fixed (AttendArgs::deterministic), what is added up together depends on positions alone. Positions
// are cut into parts, anchored at 0: the first 4096 into parts of 256, then every octave into eight. A block's warps
// take a part's positions in turns and add up their sums when it ends, and parts are added to the row from the first to
// the last, whether one block has them all or several leave theirs in the workspace. A branch goes on at the position
// after its prefix: from the last multiple of `round` in the prefix on, every query of the tile has places of its own
// for the positions that are left, those of a part together, so that a key is taken by the same warp in the same turn
// as when it lies in pages.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "attn/stream_k.h"

namespace quire::attn {

inline constexpr int32_t kUnit = 64;
inline constexpr int32_t kLeastPart = 256;
inline constexpr int32_t kNowhere = std::numeric_limits<int32_t>::max();

constexpr int32_t ceil_of(int64_t value, int32_t by) { return static_cast<int32_t>((value + by - 1) / by); }

// --- parts

constexpr int32_t part_shift(int32_t position) {
  int32_t shift = 8;
  while (position >> (shift + 4)) ++shift;
  return shift;
}
constexpr int32_t part_begin(int32_t position) {
  const int32_t shift = part_shift(position);
  return position >> shift << shift;
}
constexpr int32_t part_end(int32_t position) { return part_begin(position) + (1 << part_shift(position)); }
constexpr int32_t part_index(int32_t position) {
  const int32_t shift = part_shift(position);
  return (position >> shift) + (shift - 8) * 8;
}
constexpr int32_t begin_of_part(int32_t index) { return index < 16 ? index << 8 : (8 + index % 8) << (7 + index / 8); }
static_assert(part_index(4095) == 15 && part_index(4096) == 16 && part_index(8191) == 23 && part_index(8192) == 24);

// --- what is cut

// The same for all blocks of a call.
struct DecodeCut {
  int32_t group;            // heads of a kv head
  int32_t tile_shift;       // log2 of a tile's rows
  int32_t branch;           // most tokens of a query's branch; 0: there are none
  int32_t window;           // -1: none
  int32_t round;            // positions that a block's warps take at once
  int32_t slots_of_worker;  // partial results that a worker has room for, of each kv head; two at least
  bool is_causal, is_fixed;

  constexpr int32_t tiles_of(int32_t queries) const { return (queries * group + (1 << tile_shift) - 1) >> tile_shift; }
};

// What is known of a sequence, in shared memory. One more follows the last sequence's and ends it.
struct SequenceWork {
  int32_t units_before;  // of one kv head in the sequences before
  int32_t first;         // keys before it are in no row's window
  int32_t length;        // keys in pages
  int32_t first_row;     // of its queries; they end where the next sequence's begin
  int32_t table_row, first_page;
};

// A tile's queries' own places, where the cut is fixed: positions [begin, end) for each of them.
struct Tail {
  int32_t begin = kNowhere, end = kNowhere, queries = 0;

  struct Position {
    int32_t position, query;  // query < 0: it is all rows'
  };
  constexpr Position at(int32_t place) const {
    if (place < begin) return {place, -1};
    int32_t position = begin, rest = place - begin;
    for (;;) {
      const int32_t count = std::min(part_end(position), end) - position;
      if (rest < queries * count) return {position + rest % count, rest / count};
      rest -= queries * count;
      position += count;
    }
  }

  // Where the part ends that begins at this place.
  constexpr int32_t part_end_at(int32_t first) const {
    if (first < begin && part_end(first) <= begin) return part_end(first);
    int32_t place = begin, position = begin;
    do {
      const int32_t count = std::min(part_end(position), end) - position;
      place += queries * count;
      position += count;
    } while (place <= first);
    return place;
  }
};

struct TileWork {
  int32_t units_before, units;                     // in the sequence
  int32_t first_query, first_head, rows, queries;  // first_head: of its first row, in the group
  int32_t seen_first;                              // keys before it are in no row's window
  int32_t first, end;                              // places
  int32_t parts;                                   // where the cut is fixed
  Tail tail;

  constexpr int32_t units_of_keys() const { return ceil_of(end - first, kUnit); }
};

constexpr Tail tail_of(const DecodeCut& cut, int32_t length, int32_t queries) {
  if (!cut.is_fixed || cut.branch == 0) return {};
  return {.begin = length / cut.round * cut.round,
          .end = ceil_of(length + cut.branch, cut.round) * cut.round,
          .queries = queries};
}
constexpr int32_t end_of_places(const DecodeCut& cut, int32_t length, const Tail& tail, int32_t queries) {
  if (tail.queries) return tail.begin + tail.queries * (tail.end - tail.begin);
  return length + queries * cut.branch;
}
constexpr int32_t first_place(const DecodeCut& cut, int32_t seen_first) {
  return cut.is_fixed ? part_begin(seen_first) : seen_first;
}

// Units of a tile that has as many queries as any of a sequence, and sees all of its keys in pages.
constexpr int32_t units_of_longest(const DecodeCut& cut, const SequenceWork& seq, int32_t queries) {
  const int32_t rows = 1 << cut.tile_shift;
  const int32_t most =
      queries * cut.group <= rows ? queries : std::min(queries, (rows + cut.group - 2) / cut.group + 1);
  const Tail tail = tail_of(cut, seq.length, most);
  return ceil_of(end_of_places(cut, seq.length, tail, most) - first_place(cut, seq.first), kUnit);
}

// Units of a sequence's tiles before tile `tile`, of which there are more than one. Those of causal rows have more keys
// from one to the next, and one unit over, for what is rounded.
constexpr int32_t units_before_tile(const DecodeCut& cut, const SequenceWork& seq, int32_t queries, int32_t tile) {
  if (!cut.is_causal) return tile * units_of_longest(cut, seq, queries);
  const int64_t before_queries = seq.length - queries - first_place(cut, seq.first);
  const int64_t more = (int64_t{tile} * (tile + 1) << cut.tile_shift) / (2 * cut.group) + 1;
  return tile == 0 ? 0 : ceil_of(tile * before_queries + more, kUnit) + tile;
}

// What most sequences are: one tile, without branches where the cut is fixed. Of those, units and all of the work.
constexpr bool is_plain(const DecodeCut& cut, int32_t queries) {
  return queries * cut.group <= 1 << cut.tile_shift && !(cut.is_fixed && cut.branch);
}
// kNeverFixed: the cut is not, as is known when compiling.
template <bool kNeverFixed = false>
constexpr int32_t units_of_plain(const DecodeCut& cut, const SequenceWork& seq, int32_t queries) {
  const int32_t first = kNeverFixed ? seq.first : first_place(cut, seq.first);
  const int32_t places = seq.length + queries * cut.branch - first;
  return queries == 0 ? 0 : (places + kUnit - 1) / kUnit;
}
template <bool kNeverFixed = false>
constexpr TileWork work_of_plain(const DecodeCut& cut, const SequenceWork& seq, int32_t queries) {
  const int32_t first = kNeverFixed ? seq.first : first_place(cut, seq.first);
  return {.units_before = 0,
          .units = units_of_plain<kNeverFixed>(cut, seq, queries),
          .first_query = 0,
          .first_head = 0,
          .rows = queries * cut.group,
          .queries = queries,
          .seen_first = seq.first,
          .first = first,
          .end = seq.length + queries * cut.branch,
          .parts = !kNeverFixed && cut.is_fixed ? part_index(std::max(seq.length - 1, 0)) - part_index(first) + 1 : 0,
          .tail = {}};
}

constexpr int32_t units_of(const DecodeCut& cut, const SequenceWork& seq, int32_t queries) {
  if (is_plain(cut, queries)) return units_of_plain(cut, seq, queries);
  const int32_t tiles = cut.tiles_of(queries);
  if (tiles == 0) return 0;
  const int32_t last = units_of_longest(cut, seq, queries);
  return tiles == 1 ? last : units_before_tile(cut, seq, queries, tiles - 1) + last;
}

// The tile that has this unit of its sequence.
constexpr int32_t tile_with(const DecodeCut& cut, const SequenceWork& seq, int32_t queries, int32_t unit) {
  return last_that(cut.tiles_of(queries),
                   [&](int32_t tile) { return units_before_tile(cut, seq, queries, tile) <= unit; });
}

constexpr TileWork tile_work(const DecodeCut& cut, const SequenceWork& seq, int32_t queries, int32_t tile) {
  if (is_plain(cut, queries)) return work_of_plain(cut, seq, queries);
  const int32_t tiles = cut.tiles_of(queries), first_row = tile << cut.tile_shift;
  TileWork work{};
  work.units_before = tile == 0 ? 0 : units_before_tile(cut, seq, queries, tile);
  work.units = (tile + 1 == tiles ? units_of(cut, seq, queries) : units_before_tile(cut, seq, queries, tile + 1)) -
               work.units_before;
  work.first_query = tile == 0 ? 0 : first_row / cut.group;
  work.first_head = first_row - work.first_query * cut.group;
  work.rows = std::min(1 << cut.tile_shift, queries * cut.group - first_row);
  work.queries = tile + 1 == tiles ? queries - work.first_query : ceil_of(work.first_head + work.rows, cut.group);
  const int32_t queries_behind = cut.is_causal ? queries - work.first_query - work.queries : 0;
  const int32_t length = seq.length - queries_behind;
  work.seen_first = seq.first;
  if (tile > 0 && cut.is_causal && cut.window >= 0)
    work.seen_first = std::max(seq.first, seq.length - (queries - 1 - work.first_query) - 1 - cut.window);
  work.first = first_place(cut, work.seen_first);
  work.tail = tail_of(cut, length, work.queries);
  work.end = end_of_places(cut, length, work.tail, work.queries);
  if (cut.is_fixed) work.parts = part_index(std::max(length + cut.branch - 1, 0)) - part_index(work.first) + 1;
  return work;
}

// --- who has what

// Workers between which a tile's units lie. Partial results of the tile have the places of `last` and those between.
struct TileWorkers {
  int32_t first, last;
};
constexpr TileWorkers workers_of(const StreamK& stream_k, const SequenceWork& seq, const TileWork& tile) {
  const int32_t begin = seq.units_before + tile.units_before;
  return {stream_k.worker_of(begin), stream_k.worker_of(begin + std::max(tile.units_of_keys(), 1) - 1)};
}

// Where a worker begins whose stretch begins at this unit of a sequence, in a tile that has room for its parts, where
// the cut is fixed: where a part does. Both units are counted from the sequence's begin.
constexpr int32_t part_with(const TileWork& tile, int32_t unit) {
  const int32_t place = tile.first + (unit - tile.units_before) * kUnit;
  if (place >= tile.end) return tile.units_before + tile.units;
  return tile.units_before + (part_begin(std::min(place, tile.tail.begin)) - tile.first) / kUnit;
}

// The same for any tile: where there is no room for its parts, the tile itself.
constexpr int32_t worker_begin(const DecodeCut& cut, const StreamK& stream_k, const SequenceWork& seq, int32_t queries,
                               int32_t unit) {
  if (!cut.is_fixed || unit == 0) return unit;
  const TileWork tile = tile_work(cut, seq, queries, tile_with(cut, seq, queries, unit));
  if (tile.parts > cut.slots_of_worker) {
    const TileWorkers workers = workers_of(stream_k, seq, tile);
    const bool is_behind = unit - tile.units_before >= tile.units_of_keys();
    if (!is_behind && tile.parts > (workers.last - workers.first) * cut.slots_of_worker) return tile.units_before;
  }
  return part_with(tile, unit);
}

}  // namespace quire::attn
