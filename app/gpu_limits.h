// What this GPU does at most, the ceilings that attention is held against; each the best of a few runs.
#pragma once
#include <optional>

#include "base/cuda.h"

namespace quire::bench {

// Operations a second in products of bf16 matrices, for many queries; nothing on GPUs whose fastest instruction is not
// known here.
std::optional<double> gpu_bf16_flops(cuda::Stream& stream);

double gpu_read_bytes(cuda::Stream& stream);  // a second, of memory larger than any cache, for few queries

}  // namespace quire::bench
