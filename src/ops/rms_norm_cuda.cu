// A block norms one row: all threads bring it into shared memory, the first warp adds up its squares in the CPU's
// order, all threads scale and write it.
#include "ops/check_args.h"
#include "ops/fill_activations.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int32_t kMostThreads = 1024;

struct RmsNorm {
  RmsNormArgs args;
  bool vectors;
};

// grid: rows
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(const __grid_constant__ RmsNorm n) {
  extern __shared__ float4 row_memory[];
  __shared__ float scale_of_row;
  float* x = reinterpret_cast<float*>(row_memory);
  const int64_t row = blockIdx.x, dim = n.args.in.dim;
  const int64_t own = int64_t{threadIdx.x} * kFour, step = int64_t{blockDim.x} * kFour;
  // Nobody on the stream writes weights.
  const float4 first_weight = own < dim ? load_four(n.args.weight, own, dim, n.vectors) : float4{};
  griddep_wait();
  griddep_launch_dependents();
  if (row >= *n.args.live_rows) return;

  for (int64_t at = own; at < dim; at += step)
    row_memory[at / kFour] = load_four(n.args.in.row(row), at, dim, n.vectors);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float scale = rms_scale(x, dim, n.args.eps);
    if (threadIdx.x == 0) scale_of_row = scale;
  }
  __syncthreads();
  const float scale = scale_of_row;
  for (int64_t first = 0; first < dim; first += step) {
    const int64_t at = first + own;
    float4 result = {};
    if (at < dim) {
      const float4 weight = first == 0 ? first_weight : load_four(n.args.weight, at, dim, n.vectors);
      result = normed(row_memory[at / kFour], scale, weight);
    }
    fill_four(n.args.out, row, at, n.vectors, result);
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
  const int64_t threads = std::min<int64_t>(kMostThreads, (fours + kWarp - 1) / kWarp * kWarp);
  const int64_t shared = fours * int64_t{sizeof(float4)};
  allow_shared(rms_norm_kernel, shared, "rms_norm");
  const bool vectors = has_vectors(args.in) && has_vectors(args.out) && is_multiple(args.weight, sizeof(float4));
  launch_after(rms_norm_kernel, dim3(static_cast<uint32_t>(rows)), static_cast<int32_t>(threads),
               static_cast<size_t>(shared), stream, "rms_norm", RmsNorm{args, vectors});
}

void add_rows(const AddRowsArgs& args, Exec& exec) {
  check_args(args);
  launch_by_piece(add_rows_kernel, AddRows{args, has_vectors(args.in) && has_vectors(args.out)}, args.live_rows,
                  std::min(args.in.rows, args.out.rows), args.in.dim, "add_rows", exec);
}

}  // namespace quire::ops::cuda
