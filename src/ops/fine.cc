#include "ops/fine.h"

#include "ops/by_row.h"
#include "ops/row_kernels.h"

namespace quire::ops {
namespace {

struct SplitOp {
  SplitArgs args;
  FillRowFn* fill;

  void run_row(int64_t row) const {
    const float* x = args.in.row(row);
    const ActivationRow first = activation_row(args.out, 2 * row);
    fill(x, args.in.dim, first);
    float* rest = args.out.f32 + (2 * row + 1) * args.in.dim;
    for (int64_t i = 0; i < args.in.dim; ++i)
      rest[i] = x[i] - first.scale[i / kActivationBlock] * static_cast<float>(first.q[i]);
    fill(rest, args.in.dim, activation_row(args.out, 2 * row + 1));
  }
};

void count_op(const SplitArgs& args, Exec&) { *args.live_rows_of_out = 2 * *args.live_rows; }

struct AddPairsOp {
  AddPairsArgs args;

  void run_row(int64_t row) const {
    const float* a = args.in.row(2 * row);
    const float* b = args.in.row(2 * row + 1);
    float* out = args.out.row(row);
    for (int64_t i = 0; i < args.out.dim; ++i) out[i] = a[i] + b[i];
  }
};

}  // namespace

void split_rows(const SplitArgs& args, Exec& exec) {
  check_activations("split_rows", args.in, args.out);
  check(args.out.forms.q8 && !args.out.forms.f32 && args.out.f32, "split_rows needs quantised rows with scratch");
  check(args.live_rows_of_out != nullptr, "split_rows needs the address of the row count of its result");
  check_live_rows("split_rows", args.live_rows, std::min(args.in.rows, args.out.rows / 2), exec);
  exec.launch(count_op, args);
  launch_by_row(
      ByRow<SplitOp>{{args, row_kernels(exec.isa()).fill}, args.live_rows, rows_worth_an_item(2 * args.in.dim)}, exec);
}

void add_pairs(const AddPairsArgs& args, Exec& exec) {
  check(args.in.dim == args.out.dim, "add_pairs from rows of ", args.in.dim, " to rows of ", args.out.dim);
  check_live_rows("add_pairs", args.live_rows, std::min(args.in.rows / 2, args.out.rows), exec);
  launch_by_row(ByRow<AddPairsOp>{{args}, args.live_rows, rows_worth_an_item(args.out.dim)}, exec);
}

}  // namespace quire::ops
