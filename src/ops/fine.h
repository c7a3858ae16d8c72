// Products with quantised weights at twice the precision: each row is quantised, and what that leaves over is quantised
// as a row of its own. Both go through the weights in one pass, and their results are added.
//
//   row 2 i         x              ~  a
//   row 2 i + 1     x - a          ~  b
//   result of row i =  W a + W b                 an error of about x / 2^16, where 8 bits leave x / 2^8
//
// For what follows the last layer's attention: errors there go straight into the logits, only rows that are sampled
// from pass it, and two rows read the same weights from memory as one.
//
// Errors   as matmul's; weights that are not all quantised, and scratch that is too small, throw CheckError too.
#pragma once
#include <cstdint>

#include "base/buffer.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "ops/activations.h"
#include "ops/matmul.h"

namespace quire::ops {

// What a fine product passes through; products that follow each other share it. Address space until it is touched.
class FineScratch {
 public:
  FineScratch(int64_t rows, int64_t inputs, int64_t outputs);  // most of any product

  ActivationRows split(int64_t inputs) const { return split_.view(inputs, {.q8 = true}); }
  Rows<float> halves(int64_t outputs) const;
  int32_t* doubled() const { return reinterpret_cast<int32_t*>(count_.data()); }  // live rows of the two above

 private:
  int64_t rows_, outputs_;
  ActivationBuffer split_;
  Buffer halves_, count_;
};

struct FineMatmulArgs {
  const PackedMatrix* weights;  // outlives recorded calls
  Rows<const float> in;
  Rows<float> out;
  Store store = Store::set;
  const int32_t* live_rows;    // read when the operation runs
  const FineScratch* scratch;  // outlives recorded calls
};
void fine_matmul(const FineMatmulArgs& args, Exec& exec);  // records while exec captures

}  // namespace quire::ops
