#include "ops/fine.h"

#include <algorithm>

#include "base/check.h"
#include "ops/by_row.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

struct SplitOp {
  Rows<const float> in;
  ActivationRows out;  // its f32 rows are scratch
  FillRowFn* fill;

  void run_row(int64_t row) const {
    const float* x = in.row(row);
    const ActivationRow first = activation_row(out, 2 * row);
    fill(x, in.dim, first);
    float* rest = out.f32 + (2 * row + 1) * in.dim;
    for (int64_t i = 0; i < in.dim; ++i)
      rest[i] = x[i] - first.scale[i / kActivationBlock] * static_cast<float>(first.q[i]);
    fill(rest, in.dim, activation_row(out, 2 * row + 1));
  }
};

struct JoinOp {
  Rows<float> halves;
  Rows<float> out;
  Store store;
  JoinHalvesFn* join;

  void run_row(int64_t row) const {
    join({.first = halves.row(2 * row), .second = halves.row(2 * row + 1), .store = store}, out.dim, out.row(row));
  }
};

struct Count {
  const int32_t* rows;
  int32_t* doubled;
};
void double_count(const Count& count, Exec&) { *count.doubled = 2 * *count.rows; }

void check_fine(const FineMatmulArgs& args, const Exec& exec) {
  check(args.weights && args.scratch, "a fine product needs weights and scratch");
  check(args.weights->forms() == Forms{.q8 = true}, "a fine product needs weights that are all quantised");
  const bool pairs = args.store == Store::silu_mul;
  const int64_t columns = pairs ? args.weights->outputs() / 2 : args.weights->outputs();
  check(args.out.dim == columns, "an output of ", args.out.dim, " columns does not fit a product of ", columns);
  check(!pairs || args.weights->join() == PackedMatrix::Join::gate_and_up, "silu_mul needs a gate and an up matrix");
  check_live_rows("fine_matmul", args.live_rows, std::min(args.in.rows, args.out.rows), exec);
}

}  // namespace

FineScratch::FineScratch(int64_t rows, int64_t inputs, int64_t outputs)
    : rows_(2 * rows),
      outputs_(outputs),
      split_(rows_, inputs),
      halves_(static_cast<size_t>(rows_ * outputs) * sizeof(float)),
      count_(sizeof(int32_t)) {}

Rows<float> FineScratch::halves(int64_t outputs) const {
  check(outputs <= outputs_, "scratch for ", outputs_, " outputs cannot take ", outputs);
  return {reinterpret_cast<float*>(halves_.data()), rows_, outputs, outputs};
}

void fine_matmul(const FineMatmulArgs& args, Exec& exec) {
  check_fine(args, exec);
  const ActivationRows split = args.scratch->split(args.in.dim);
  const Rows<float> halves = args.scratch->halves(args.weights->outputs());
  check_activations("fine_matmul", args.in, split);
  check_live_rows("fine_matmul's scratch", args.live_rows, split.rows / 2, exec);
  const RowKernels kernels = row_kernels(exec.isa());
  exec.launch(double_count, Count{args.live_rows, args.scratch->doubled()});
  launch_by_row(ByRow<SplitOp>{{args.in, split, kernels.fill}, args.live_rows, rows_worth_an_item(2 * args.in.dim)},
                exec);
  matmul({.weights = args.weights, .in = split, .out = halves, .live_rows = args.scratch->doubled()}, exec);
  launch_by_row(ByRow<JoinOp>{{halves, args.out, args.store, kernels.join_halves},
                              args.live_rows,
                              rows_worth_an_item(args.weights->outputs())},
                exec);
}

}  // namespace quire::ops
