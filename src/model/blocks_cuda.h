// Blocks of a GPU. Where all weights read bf16, what lies between two blocks, attended rows and gate_up's, is bf16,
// each row from where its f32 row would begin, so the next product reads it as it is. All of a layer's blocks are
// chosen together, because they share these rows.
//
// With few rows a block is one kernel: rope and the store are part of qkv's product where it knows how (ops/matmul.h),
// and streamed blocks leave x for the next norm as they add to it.
#pragma once
#include "model/blocks.h"

namespace quire::model::cuda {

void qkv(const QkvBlock& block, Exec& exec);
void attention(const attn::AttendArgs& args, Exec& exec);
void residual(const ResidualBlock& block, Exec& exec);
void streamed_residual(const ResidualBlock& block, Exec& exec);  // no norm after it
void gate_up(const GateUpBlock& block, Exec& exec);

// Where all weights read quantised rows: those lie between blocks as f32, and a product that knows how quantises them,
// and norms them before, itself.
void quantised_qkv(const QkvBlock& block, Exec& exec);
void quantised_residual(const ResidualBlock& block, Exec& exec);
void quantised_gate_up(const GateUpBlock& block, Exec& exec);

}  // namespace quire::model::cuda
