// Keys, values or queries of a layer as TMA, Hopper's copy engine, sees them.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "attn/attention.h"
#include "kv/store.h"

namespace quire::attn::cuda {

enum class Rows : uint8_t { keys, values };

// The tensor [slots, kv heads, dim] in boxes of `slots` rows of one head, 64 columns wide, which land as panels
// (hopper.cuh). Elements have two bytes; columns past the dim are zeros.
CUtensorMap tensor_map(const kv::LayerKv& kv, Rows rows, int32_t slots);

// The tensor [rows, heads, dim] of queries in boxes of so many heads of so many rows.
CUtensorMap tensor_map(const ConstHeadRows& queries, int32_t heads, int32_t rows);

}  // namespace quire::attn::cuda
