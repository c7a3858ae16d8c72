#include "ops/by_row.h"
#include "ops/check_args.h"

namespace quire::ops {
namespace {

struct QuantiseOp {
  static constexpr const char* kName = "quantise";
  QuantiseArgs args;
  FillRowFn* kernel;

  void run_row(int64_t row) const { kernel(args.in.row(row), args.in.dim, activation_row(args.out, row)); }
};

void launch(const QuantiseArgs& args, FillRowFn* kernel, Exec& exec) {
  check_args(args, Device::cpu);
  launch_by_row(QuantiseOp{args, kernel}, args.live_rows, std::min(args.in.rows, args.out.rows), args.in.dim, exec);
}

}  // namespace

void ref::quantise(const QuantiseArgs& args, Exec& exec) { launch(args, fill_row, exec); }
void cpu::quantise(const QuantiseArgs& args, Exec& exec) { launch(args, row_kernels(exec.isa()).fill, exec); }

ActivationRow activation_row(const ActivationRows& rows, int64_t row) {
  const int64_t blocks = rows.dim / kActivationBlock;
  const auto quantised = [&](int64_t at) {
    return QuantisedRow{rows.q + at * rows.q_stride, rows.scale + at * blocks, rows.sums + at * blocks * 2};
  };
  ActivationRow result{};
  if (rows.forms.f32) result.f32 = rows.f32 + row * rows.dim;
  if (rows.forms.quantised()) result.q8 = quantised(rows.forms.q8x2 ? 2 * row : row);
  if (rows.forms.q8x2) result.rest = quantised(2 * row + 1);
  return result;
}

void check_args(const QuantiseArgs& args, Device device) { check_activations("quantise", args.in, args.out, device); }

void check_activations(const char* operation, const Rows<const float>& in, const ActivationRows& out, Device device) {
  check(in.dim > 0 && in.dim == out.dim, operation, " from rows of ", in.dim, " to rows of ", out.dim);
  check(in.rows >= 0 && (in.stride >= in.dim || in.rows <= 1), operation, " from ", in.rows, " rows with stride ",
        in.stride, ", shorter than ", in.dim);
  check(in.data != nullptr || in.rows == 0, operation, " from ", in.rows, " rows and no address");
  check(out.forms != Forms{}, operation, " into no form");
  check(!out.forms.bf16 || device == Device::cuda, operation, " into bf16 rows, which ", device, " does not fill");
  check(!out.forms.q8 || !out.forms.q8x2, operation, " into q8 and q8x2, which lie in the same place");
  check(!out.forms.f32 || out.f32 != nullptr, operation, " into f32 rows without an address");
  check(!out.forms.bf16 || out.bf16 != nullptr, operation, " into bf16 rows without an address");
  if (!out.forms.quantised()) return;
  check(out.dim % kActivationBlock == 0, operation, " into quantised rows of ", out.dim, ", no whole blocks of ",
        kActivationBlock);
  check(out.q != nullptr && out.scale != nullptr && out.sums != nullptr, operation,
        " into quantised rows without an address");
  check(out.q_stride >= out.dim, operation, " into quantised rows with stride ", out.q_stride, ", shorter than ",
        out.dim);
}

}  // namespace quire::ops
