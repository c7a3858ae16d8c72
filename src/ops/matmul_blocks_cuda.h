// Inside matmul on a GPU: products of quantised weights (packed_blocks.h). The arguments are checked, and the weights'
// parts are all quantised.
#pragma once
#include <cuda_runtime_api.h>

#include <span>

#include "ops/matmul.h"

namespace quire::ops::cuda {

// With the CPU's bits.
void multiply_blocks(const MatmulArgs& args, cudaStream_t stream);

// For many rows: by cuBLASLt, both sides rounded to bf16. prepare_dequantised() takes the memory for it.
bool suits_dequantised(const MatmulArgs& args);
void multiply_dequantised(const MatmulArgs& args, cudaStream_t stream);
void prepare_dequantised(cudaStream_t stream);
// The stream's memory for weights as bf16, which prepare_dequantised() took.
std::span<uint16_t> dequantised_weights(cudaStream_t stream);

}  // namespace quire::ops::cuda
