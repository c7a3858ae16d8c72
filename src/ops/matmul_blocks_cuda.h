// Inside matmul on a GPU: products of quantised weights (packed_blocks.h).
#pragma once
#include "ops/matmul.h"

namespace quire::ops::cuda {

// The arguments are checked, and the weights' parts are all quantised.
void multiply_blocks(const MatmulArgs& args, Exec& exec);

}  // namespace quire::ops::cuda
