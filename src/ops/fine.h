// Products with quantised weights at twice the precision: each row is quantised, and what that leaves over is quantised
// as a row of its own. Both go through the weights in one pass, and their results are added.
//
//   row 2 i         x              ~  a
//   row 2 i + 1     x - a          ~  b
//   result of row i =  W a + W b                 an error of about x / 2^16, where 8 bits leave x / 2^8
//
// For the output matrix: its errors go straight into the logits, only rows that are sampled from pass it, and one or
// two rows read the same weights from memory.
#pragma once
#include <cstdint>

#include "base/exec.h"
#include "base/tensor.h"
#include "ops/activations.h"

namespace quire::ops {

struct SplitArgs {
  Rows<const float> in;
  ActivationRows out;         // form q8 only; room for twice the rows; its f32 rows are used as scratch
  const int32_t* live_rows;   // of in; read when the operation runs
  int32_t* live_rows_of_out;  // becomes twice that
};
void split_rows(const SplitArgs& args, Exec& exec);  // records while exec captures

struct AddPairsArgs {
  Rows<const float> in;      // twice the rows of out
  Rows<float> out;           // row i: rows 2 i and 2 i + 1 of in together
  const int32_t* live_rows;  // of out
};
void add_pairs(const AddPairsArgs& args, Exec& exec);  // records while exec captures

}  // namespace quire::ops
