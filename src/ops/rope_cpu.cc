#include <cmath>
#include <limits>

#include "ops/by_row.h"
#include "ops/check_args.h"

namespace quire::ops {
namespace {

struct AnglesOp {
  static constexpr const char* kName = "rope angles";
  RopeAnglesArgs args;

  void run_row(int64_t row) const {
    const double position = args.positions[row];
    for (int32_t i = 0; i < args.half; ++i) {
      const double angle = position * args.inverse_frequency[i];
      args.cos[row * args.half + i] = static_cast<float>(std::cos(angle) * args.magnitude);
      args.sin[row * args.half + i] = static_cast<float>(std::sin(angle) * args.magnitude);
    }
  }
};

// A cosine and a sine take the time of many of the other operations' elements.
constexpr int64_t kElementsPerAngle = 64;

struct RopeOp {
  static constexpr const char* kName = "rope";
  RopeArgs args;
  RotateFn* rotate;
  NarrowFn* narrow;

  void run_row(int64_t row) const {
    float* queries = args.qkv.row(row);
    float* keys = queries + int64_t{args.heads} * args.dim;
    rotate(heads(row, queries, args.heads, args.q_norm));
    rotate(heads(row, keys, args.kv_heads, args.k_norm));
    narrow(queries, int64_t{args.heads} * args.dim, args.q.type, args.q.at(row, 0));
  }

  HeadsOfToken heads(int64_t row, float* x, int32_t count, const float* norm) const {
    return {.x = x,
            .heads = count,
            .dim = args.dim,
            .half = args.half,
            .adjacent_pairs = args.adjacent_pairs,
            .cos = args.cos + row * args.half,
            .sin = args.sin + row * args.half,
            .norm = norm,
            .norm_dim = args.norm_whole_row ? int64_t{count} * args.dim : args.dim,
            .eps = args.norm_eps};
  }
};

int64_t row_elements(const RopeArgs& args) { return (args.heads + int64_t{2} * args.kv_heads) * args.dim; }

void check_shapes(const RopeArgs& args) {
  check(args.heads > 0 && args.kv_heads > 0 && args.dim > 0, "rope of ", args.heads, " heads and ", args.kv_heads,
        " kv heads of ", args.dim);
  check(args.half >= 0 && args.half * int64_t{2} <= args.dim, "rope turns ", args.half, " pairs of heads of ",
        args.dim);
  check(args.qkv.dim == row_elements(args), "rope of rows of ", args.qkv.dim, ", which are not ", args.heads, " + 2 x ",
        args.kv_heads, " heads of ", args.dim);
  check(args.qkv.stride >= args.qkv.dim || args.qkv.rows <= 1, "rope of rows with stride ", args.qkv.stride,
        ", shorter than ", args.qkv.dim);
  check(args.q.heads == args.heads && args.q.dim == args.dim, "rope of ", args.heads, " heads of ", args.dim,
        " into queries of ", args.q.heads, " heads of ", args.q.dim);
  check(args.q.row_stride >= int64_t{args.heads} * args.dim || args.q.rows <= 1, "rope into queries with stride ",
        args.q.row_stride, ", shorter than ", args.heads, " heads of ", args.dim);
  check(args.q.type != Dtype::f8e4m3, "rope into queries of type ", args.q.type);
}

void check_addresses(const RopeArgs& args) {
  check(args.qkv.data != nullptr && args.q.data != nullptr, "rope needs the addresses of its rows and queries");
  check(args.half == 0 || (args.cos && args.sin), "rope needs the addresses of ", args.half, " cosines and sines");
}

void launch(const RopeArgs& args, const RowKernels& kernels, Exec& exec) {
  check_args(args);
  launch_by_row(RopeOp{args, kernels.rotate, kernels.narrow}, args.live_rows, std::min(args.qkv.rows, args.q.rows),
                row_elements(args), exec);
}

}  // namespace

void check_args(const RopeArgs& args) {
  check_shapes(args);
  check_addresses(args);
  check(std::isfinite(args.norm_eps) && args.norm_eps >= 0, "rope with a norm eps of ", args.norm_eps);
}

void check_args(const RopeAnglesArgs& args) {
  check(args.half >= 0, "rope angles for ", args.half, " pairs");
  check(args.half == 0 || (args.inverse_frequency && args.cos && args.sin && args.positions),
        "rope angles need the addresses of positions, frequencies, cosines and sines");
  check(std::isfinite(args.magnitude), "rope angles with a magnitude of ", args.magnitude);
}

void cpu::rope_angles(const RopeAnglesArgs& args, Exec& exec) {
  check_args(args);
  launch_by_row(AnglesOp{args}, args.live_rows, std::numeric_limits<int32_t>::max(), args.half * kElementsPerAngle,
                exec);
}

void ref::rope(const RopeArgs& args, Exec& exec) { launch(args, kRowKernels, exec); }
void cpu::rope(const RopeArgs& args, Exec& exec) { launch(args, row_kernels(exec.isa()), exec); }

}  // namespace quire::ops
