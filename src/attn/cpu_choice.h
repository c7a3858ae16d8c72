// On a CPU: which kernel, which tile, how the work is cut. Pure functions of the problem and the machine, so that they
// can be printed and tested anywhere. (A GPU's: gpu_choice.h.)
//
// The reduction is fixed and independent of every choice here. Keys are taken in blocks of kBlock positions and ranges
// of kRange positions, both anchored at position 0; blocks fold into a range, ranges fold left to right into the row.
#pragma once
#include <cstdint>
#include <string>

#include "attn/metadata.h"
#include "base/cpu_features.h"
#include "base/types.h"

namespace quire::attn {

inline constexpr int32_t kBlock = 64;   // keys whose scores exist at once; the softmax maximum moves once a block
inline constexpr int32_t kRange = 512;  // keys that one thread folds alone when a sequence is split

struct Problem {
  Dtype query_type;
  Dtype kv_type;
  int32_t heads;
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
};
std::string to_string(const Problem& problem);

struct Choice {
  Isa isa;             // amx: bf16 tiles; avx512bf16: dots of bf16 pairs; below: f32 products of widened elements
  int32_t positions;   // query positions in a tile
  int32_t head_chunk;  // query heads of one kv head taken together
};
std::string to_string(const Choice& choice);

// Throws CheckError printing the problem when no kernel computes it.
Choice choose(const Problem& problem, Isa machine);

// (position, head) rows in a tile: as many as let its queries, its results and a block of keys and values stay in a
// core's L2.
constexpr int32_t tile_rows(int32_t key_dim) { return key_dim > 256 ? 32 : key_dim > 128 ? 128 : 256; }

// Query positions in a tile.
constexpr int32_t tile_positions(int32_t heads, int32_t kv_heads, int32_t key_dim) {
  const int32_t positions = tile_rows(key_dim) / (heads / kv_heads);
  return positions < 1 ? 1 : positions;
}

// The split rule, shared by every writer: one tile walks all its keys alone, for all heads, unless that would be more
// than a quarter of a thread's fair share of the step; then each range is an item of its own.
//   keys: the sequence's keys in pages plus the most branch tokens; total_keys: sum over all sequences of tiles x keys
// A sequence of q queries has ceil(q / tile_positions) tiles. Its items are its tiles, or when it is split tiles x
// ranges_of(its key positions), ranges fastest; its splits are its items if split, else 0.
constexpr bool split_tile(int64_t keys, int64_t total_keys, int32_t threads) {
  return threads > 1 && keys > kRange && keys * 4 * threads > total_keys;
}
// Hence fewer tiles than this are split at a time.
constexpr int64_t most_split_tiles(int32_t threads) { return threads > 1 ? int64_t{4} * threads : 0; }

// Ranges that touch the positions [first, end).
constexpr int64_t ranges_of(int64_t first, int64_t end) {
  return end <= first ? 0 : (end + kRange - 1) / kRange - first / kRange;
}

}  // namespace quire::attn
