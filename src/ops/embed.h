// Rows by index: token embeddings from the file's own blocks, and the rows whose logits are wanted.
//
// The GPU's give the bits of the CPU's, NaNs apart, whose bits are not fixed.
//
// Errors   shapes that do not fit and missing addresses throw CheckError before any work; ids and indices outside their
//          range, and more live rows than there is room for, when the operation runs. A GPU cannot throw then: a row
//          whose id or index is out of range becomes NaN, and a live count beyond the room counts as the room.
#pragma once
#include <cstdint>

#include "base/exec.h"
#include "base/tensor.h"
#include "ops/matmul.h"

namespace quire::ops {

struct EmbedArgs {
  WeightView table;    // [vocabulary, dim], of any type; stays mapped
  const int32_t* ids;  // [rows], each in the vocabulary
  Rows<float> out;
  float scale = 1;           // of every number
  const int32_t* live_rows;  // read when the operation runs
};
using EmbedFn = void(const EmbedArgs&, Exec&);
namespace cpu {
EmbedFn embed;  // plain loops, the meaning itself; so is gather_rows
}
namespace cuda {
EmbedFn embed;
}
EmbedFn embed;  // for callers; records while exec captures

struct GatherArgs {
  Rows<const float> in;
  const int32_t* index;  // [rows of out] which row of in
  Rows<float> out;
  const int32_t* live_rows;  // of out; read when the operation runs
};
using GatherFn = void(const GatherArgs&, Exec&);
namespace cpu {
GatherFn gather_rows;
}
namespace cuda {
GatherFn gather_rows;
}
GatherFn gather_rows;  // for callers; records while exec captures

}  // namespace quire::ops
