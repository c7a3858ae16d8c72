// The door of rms_norm, and the pick of its kernel for callers.
#include "ops/rms_norm.h"

#include <cmath>

#include "ops/by_row.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

struct RmsNormOp {
  RmsNormArgs args;
  RmsNormRowFn* kernel;

  void run_row(int64_t row) const {
    kernel(args.in.row(row), args.weight, args.eps, args.in.dim, activation_row(args.out, row));
  }
};

void launch(const RmsNormArgs& args, RmsNormRowFn* kernel, int64_t rows_in_item, Exec& exec) {
  check_activations("rms_norm", args.in, args.out);
  check(args.weight != nullptr, "rms_norm needs a weight");
  check(std::isfinite(args.eps) && args.eps >= 0, "rms_norm with an eps of ", args.eps);
  check_live_rows("rms_norm", args.live_rows, std::min(args.in.rows, args.out.rows), exec);
  launch_by_row(ByRow<RmsNormOp>{{args, kernel}, args.live_rows, rows_in_item}, exec);
}

}  // namespace

void ref::rms_norm(const RmsNormArgs& args, Exec& exec) { launch(args, rms_norm_row, kOnTheCallingThread, exec); }

void rms_norm(const RmsNormArgs& args, Exec& exec) {
  launch(args, row_kernels(exec.isa()).rms_norm, rows_worth_an_item(args.in.dim), exec);
}

}  // namespace quire::ops
