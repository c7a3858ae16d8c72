// The lines of `quire bench matmul`: the matrices of the default model, with few and many rows.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "machine_limits.h"

namespace quire::bench {

struct MatmulLine {
  std::string matrix;  // what it is in the model
  BlockType type;
  int64_t inputs;
  int64_t outputs;           // of gate and up together
  bool gate_and_up = false;  // stored as silu(gate) * up
  int32_t rows = 1;
  bool cold = false;  // rotates over copies that no cache holds
};

// "matmul/qkv/576x960/type=Q4_1/rows=8", then "/cold".
std::string name(const MatmulLine& line);

// Every weight, activation and result once; two operations a product.
Work work_of(const MatmulLine& line);

std::vector<MatmulLine> matmul_lines(bool quick);

}  // namespace quire::bench
