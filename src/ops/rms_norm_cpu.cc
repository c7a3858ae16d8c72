#include <cmath>

#include "ops/by_row.h"
#include "ops/check_args.h"

namespace quire::ops {
namespace {

struct RmsNormOp {
  static constexpr const char* kName = "rms_norm";
  RmsNormArgs args;
  RmsNormRowFn* kernel;

  void run_row(int64_t row) const {
    kernel(args.in.row(row), args.weight, args.eps, args.in.dim, activation_row(args.out, row));
  }
};

struct AddRowsOp {
  static constexpr const char* kName = "add_rows";
  AddRowsArgs args;

  void run_row(int64_t row) const {
    const float* in = args.in.row(row);
    float* out = args.out.row(row);
    for (int64_t i = 0; i < args.in.dim; ++i) out[i] += args.scale * in[i];
  }
};

void launch(const RmsNormArgs& args, RmsNormRowFn* kernel, Exec& exec) {
  check_args(args, Device::cpu);
  launch_by_row(RmsNormOp{args, kernel}, args.live_rows, std::min(args.in.rows, args.out.rows), args.in.dim, exec);
}

}  // namespace

void check_args(const RmsNormArgs& args, Device device) {
  check_activations("rms_norm", args.in, args.out, device);
  check(args.weight != nullptr, "rms_norm needs a weight");
  check(std::isfinite(args.eps) && args.eps >= 0, "rms_norm with an eps of ", args.eps);
}

void ref::rms_norm(const RmsNormArgs& args, Exec& exec) { launch(args, rms_norm_row, exec); }
void cpu::rms_norm(const RmsNormArgs& args, Exec& exec) { launch(args, row_kernels(exec.isa()).rms_norm, exec); }

void check_args(const AddRowsArgs& args) {
  check(args.in.data != nullptr && args.out.data != nullptr, "add_rows needs the addresses of its rows");
  check(args.in.dim == args.out.dim, "add_rows of rows of ", args.in.dim, " to rows of ", args.out.dim);
}

void cpu::add_rows(const AddRowsArgs& args, Exec& exec) {
  check_args(args);
  launch_by_row(AddRowsOp{args}, args.live_rows, std::min(args.in.rows, args.out.rows), args.in.dim, exec);
}

}  // namespace quire::ops
