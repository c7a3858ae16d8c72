// A block norms one row: a thread has the numbers of four lanes of squares (kSquareLanes) in its registers, so what the
// threads tell each other is one sum of each lane. Warps add these up by themselves.
#include "ops/check_args.h"
#include "ops/fill_activations.cuh"

namespace quire::ops::cuda {
namespace {

// grid: rows
template <bool kVectors>
__global__ void __launch_bounds__(kSquareThreads) rms_norm_kernel(const __grid_constant__ RmsNormArgs args) {
  constexpr int32_t kHeld = 4;  // fours of a thread that stay in its registers: all of a row of 4096
  __shared__ float4 of_threads[kSquareThreads];
  const int64_t row = blockIdx.x, dim = args.in.dim, own = int64_t{threadIdx.x} * kFour;
  float4 held[kHeld], weights[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {  // nobody on the stream writes weights
    const int64_t at = own + i * kSquareLanes;
    weights[i] = at < dim ? load_four(args.weight, at, dim, kVectors) : float4{};
  }
  griddep_wait();
  griddep_launch_dependents();
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) {  // on its way before the live count is known
    const int64_t at = own + i * kSquareLanes;
    held[i] = at < dim ? load_four(args.in.row(row), at, dim, kVectors) : float4{};
  }
  if (row >= *args.live_rows) return;

  float4 squares = {};
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i) squares = add_squares(held[i], squares);
  for (int64_t at = own + kHeld * kSquareLanes; at < dim; at += kSquareLanes)
    squares = add_squares(load_four(args.in.row(row), at, dim, kVectors), squares);
  const float scale = rms_scale(fold_squares(squares, of_threads), dim, args.eps);
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i)
    if (i * kSquareLanes < dim)
      fill_four(args.out, row, own + i * kSquareLanes, kVectors, normed(held[i], scale, weights[i]));
  for (int64_t first = kHeld * kSquareLanes; first < dim; first += kSquareLanes) {
    const int64_t at = first + own;
    float4 result = {};
    if (at < dim)
      result = normed(load_four(args.in.row(row), at, dim, kVectors), scale, load_four(args.weight, at, dim, kVectors));
    fill_four(args.out, row, at, kVectors, result);
  }
}

struct AddRows {
  AddRowsArgs args;
  bool vectors;
};

__global__ void __launch_bounds__(kPieceThreads) add_rows_kernel(const __grid_constant__ AddRows a) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x, at = first_of_thread(), dim = a.args.in.dim;
  if (row >= *a.args.live_rows || at >= dim) return;
  const float4 in = load_four(a.args.in.row(row), at, dim, a.vectors);
  const float4 out = load_four(a.args.out.row(row), at, dim, a.vectors);
  const auto sum = [&](float to, float from) { return __fadd_rn(to, __fmul_rn(a.args.scale, from)); };
  store_four(a.args.out.row(row), at, dim, a.vectors,
             {sum(out.x, in.x), sum(out.y, in.y), sum(out.z, in.z), sum(out.w, in.w)});
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Exec& exec) {
  check_args(args, Device::cuda);
  check(args.live_rows != nullptr, "rms_norm needs the address of the live row count");
  const cudaStream_t stream = stream_of(exec);
  const int64_t rows = std::min(args.in.rows, args.out.rows);
  if (rows == 0) return;
  const int64_t fours = (args.in.dim + kFour - 1) / kFour;
  const int64_t threads = std::min<int64_t>(kSquareThreads, (fours + kWarp - 1) / kWarp * kWarp);
  const bool vectors = has_vectors(args.in) && has_vectors(args.out) && is_multiple(args.weight, sizeof(float4));
  const auto kernel = vectors ? rms_norm_kernel<true> : rms_norm_kernel<false>;
  launch_after(kernel, dim3(static_cast<uint32_t>(rows)), static_cast<int32_t>(threads), 0, stream, "rms_norm", args);
}

void add_rows(const AddRowsArgs& args, Exec& exec) {
  check_args(args);
  launch_by_piece(add_rows_kernel, AddRows{args, has_vectors(args.in) && has_vectors(args.out)}, args.live_rows,
                  std::min(args.in.rows, args.out.rows), args.in.dim, "add_rows", exec);
}

}  // namespace quire::ops::cuda
