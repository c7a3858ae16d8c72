// Keys or values of a layer as TMA, Hopper's copy engine, sees them.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "kv/store.h"

namespace quire::attn::cuda {

enum class Rows : uint8_t { keys, values };

// The tensor [slots, kv heads, dim] in boxes of `slots` rows of one head, 64 columns wide, which land as panels
// (hopper.cuh). Elements have two bytes; columns past the dim are zeros.
CUtensorMap tensor_map(const kv::LayerKv& kv, Rows rows, int32_t slots);

}  // namespace quire::attn::cuda
