// From rows of a weight file to one packed tile.
#pragma once
#include <cstddef>

#include "ops/matmul.h"

namespace quire::ops {

// Columns [first, first + 16) of the weights, as packed_layout.h lays them out; columns that do not exist become zeros.
// `tile` has tile_bytes(type, inputs) bytes; what the layout leaves unused is not written.
void pack_tile(const WeightView& weights, int64_t first, std::byte* tile);

}  // namespace quire::ops
