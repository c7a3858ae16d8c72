// How a matrix lies in a GPU's memory, and how much of it that takes: by shapes and types alone, so that it is known
// before anything is read. PackedMatrix places by the same choice.
#pragma once
#include <cstdint>
#include <span>

#include "ops/matmul.h"

namespace quire::ops {

enum class DeviceForm : uint8_t {
  blocks,  // quantised, as the file has them (packed_blocks.h)
  fp8,     // bytes and their scales (packed_fp8.h)
  rows     // bf16 (packed_rows.h)
};
// The parts fit each other. Of scales only the shapes are looked at, and whether there are any.
DeviceForm device_form(std::span<const WeightView> parts, PackedMatrix::Join join);
int64_t device_bytes(std::span<const WeightView> parts, PackedMatrix::Join join);

}  // namespace quire::ops
