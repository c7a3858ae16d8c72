// The door of quantise, and the pick of its kernel for callers.
#include "ops/by_row.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

struct QuantiseOp {
  QuantiseArgs args;
  FillRowFn* kernel;

  void run_row(int64_t row) const { kernel(args.in.row(row), args.in.dim, activation_row(args.out, row)); }
};

void launch(const QuantiseArgs& args, FillRowFn* kernel, int64_t rows_in_item, Exec& exec) {
  check_activations("quantise", args.in, args.out);
  check_live_rows("quantise", args.live_rows, std::min(args.in.rows, args.out.rows), exec);
  launch_by_row(ByRow<QuantiseOp>{{args, kernel}, args.live_rows, rows_in_item}, exec);
}

}  // namespace

void ref::quantise(const QuantiseArgs& args, Exec& exec) { launch(args, fill_row, kOnTheCallingThread, exec); }

void quantise(const QuantiseArgs& args, Exec& exec) {
  launch(args, row_kernels(exec.isa()).fill, rows_worth_an_item(args.in.dim), exec);
}

}  // namespace quire::ops
