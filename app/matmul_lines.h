// The lines of `quire bench matmul`: the matrices of the default model and one of every quantised type, with few and
// many rows, on every instruction set that has products of its own.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "base/cpu_features.h"
#include "machine_limits.h"

namespace quire::bench {

struct MatmulMatrix {
  std::string name;  // what it is in a model
  BlockType type;
  int64_t inputs;
  int64_t outputs;           // of gate and up together
  bool gate_and_up = false;  // stored as silu(gate) * up
  friend bool operator==(const MatmulMatrix&, const MatmulMatrix&) = default;
};

struct MatmulLine {
  MatmulMatrix matrix;
  int32_t rows = 1;
  Isa isa;
  bool cold = false;  // rotates over copies that no cache holds
};

// "matmul/qkv/576x960/type=Q4_1/rows=8", then "/cold" and what is away from the default: "/isa=avx2".
std::string name(const MatmulLine& line, Isa default_isa);

// Every weight, activation and result once; two operations a product.
Work work_of(const MatmulLine& line);

// How long it takes at best: at the peak of its instruction set's products of bytes, and when cold at full bandwidth.
double limit_seconds(const MatmulLine& line, const MachineLimits& limits);

// One group for each matrix, whose lines take turns; by instruction sets within a number of rows.
std::vector<std::vector<MatmulLine>> matmul_groups(std::span<const Isa> isas, bool quick);

// Of those given, the ones whose quantised products differ, and which are best for some machine.
std::vector<Isa> product_isas(std::span<const Isa> isas);

}  // namespace quire::bench
