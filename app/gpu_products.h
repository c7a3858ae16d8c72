// How fast this GPU multiplies bf16 matrices at most: the ceiling that attention with many queries is held against.
#pragma once
#include <optional>

#include "base/cuda.h"

namespace quire::bench {

// Operations a second, the best of a few runs; nothing on GPUs whose fastest instruction is not known here.
std::optional<double> gpu_bf16_flops(cuda::Stream& stream);

}  // namespace quire::bench
