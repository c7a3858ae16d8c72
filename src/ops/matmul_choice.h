// Which kernel computes a product on a GPU, in words: "small", "tiles", "stream", "gates", "split_k", "ring", "fp8",
// "blocks", "dequantised", or cuBLASLt's algorithm, its tile, stages and splits.
#pragma once
#include <string>

#include "ops/matmul.h"

namespace quire::ops::cuda {

// Chooses as matmul() does, and as that keeps it.
std::string kernel_of(const MatmulArgs& args, Exec& exec);

}  // namespace quire::ops::cuda
