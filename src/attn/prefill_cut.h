// How prefill splits tiles over keys, in numbers alone: the same text for the blocks of prefill_tile_cuda.cuh and for
// tests on any machine. A tile's keys are so many steps; where all tiles' steps are shared out among the places for
// partial results, a tile that is longer than its share becomes several splits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/device_code.h"

namespace quire::attn::cuda {

// Steps that a split has, if it is one of several. A tile of n steps, more than a share, has less than 2 n / share
// splits, so all split tiles together have no more than there are slots.
constexpr int32_t share_of(int64_t steps_of_all, int32_t slots) {
  constexpr int32_t kLeast = 8;  // less is not worth a merge
  return std::max(kLeast, static_cast<int32_t>((2 * steps_of_all + slots - 1) / slots));
}

// No more than they are long: each costs time to be stored and merged.
QUIRE_DEVICE inline int32_t splits_of(int32_t steps, int32_t share) {
  if (steps <= share) return 1;
  return std::min((steps + share - 1) / share, static_cast<int32_t>(std::sqrt(static_cast<float>(steps))));
}

// Splits in the sequences before one, of one kv head: all of them, and those of tiles that have several.
struct SplitsBefore {
  static constexpr int32_t kBits = 20;
  int32_t both;

  static constexpr SplitsBefore of(int32_t tiles, int32_t splits) {
    return {tiles * splits | (splits > 1 ? tiles * splits : 0) << kBits};
  }
  constexpr int32_t all() const { return both & ((1 << kBits) - 1); }
  constexpr int32_t of_several() const { return both >> kBits; }
};

}  // namespace quire::attn::cuda
