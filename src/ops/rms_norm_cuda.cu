// A block norms one row: all threads bring it into shared memory, the first warp adds up its squares in the CPU's
// order, all threads scale and write it. That first warp takes most of the time, so blocks are small: of many rows, a
// multiprocessor has several at a time.
#include "ops/check_args.h"
#include "ops/fill_activations.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int32_t kMostThreads = 256;

// grid: rows
template <bool kVectors>
__global__ void __launch_bounds__(kMostThreads) rms_norm_kernel(const __grid_constant__ RmsNormArgs args) {
  constexpr int32_t kHeld = 4;  // fours of a thread that stay in its registers: all of a row of 4096
  extern __shared__ float4 row_memory[];
  __shared__ float scale_of_row;
  const float* x = reinterpret_cast<const float*>(row_memory);
  const int64_t row = blockIdx.x, dim = args.in.dim;
  const int64_t own = int64_t{threadIdx.x} * kFour, step = int64_t{blockDim.x} * kFour;
  float4 held[kHeld], weights[kHeld];
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i)  // nobody on the stream writes weights
    weights[i] = own + i * step < dim ? load_four(args.weight, own + i * step, dim, kVectors) : float4{};
  griddep_wait();
  griddep_launch_dependents();
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i)  // on its way before the live count is known
    held[i] = own + i * step < dim ? load_four(args.in.row(row), own + i * step, dim, kVectors) : float4{};
  if (row >= *args.live_rows) return;

#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i)
    if (own + i * step < dim) row_memory[(own + i * step) / kFour] = held[i];
  for (int64_t at = own + kHeld * step; at < dim; at += step)
    row_memory[at / kFour] = load_four(args.in.row(row), at, dim, kVectors);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float scale = rms_scale(x, dim, args.eps);
    if (threadIdx.x == 0) scale_of_row = scale;
  }
  __syncthreads();
  const float scale = scale_of_row;
#pragma unroll
  for (int32_t i = 0; i < kHeld; ++i)
    if (i * step < dim) fill_four(args.out, row, own + i * step, kVectors, normed(held[i], scale, weights[i]));
  for (int64_t first = kHeld * step; first < dim; first += step) {
    const int64_t at = first + own;
    float4 result = {};
    if (at < dim) result = normed(row_memory[at / kFour], scale, load_four(args.weight, at, dim, kVectors));
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
  const int64_t threads = std::min<int64_t>(kMostThreads, (fours + kWarp - 1) / kWarp * kWarp);
  const int64_t shared = fours * int64_t{sizeof(float4)};
  const bool vectors = has_vectors(args.in) && has_vectors(args.out) && is_multiple(args.weight, sizeof(float4));
  const auto kernel = vectors ? rms_norm_kernel<true> : rms_norm_kernel<false>;
  allow_shared(kernel, shared, "rms_norm");
  launch_after(kernel, dim3(static_cast<uint32_t>(rows)), static_cast<int32_t>(threads), static_cast<size_t>(shared),
               stream, "rms_norm", args);
}

void add_rows(const AddRowsArgs& args, Exec& exec) {
  check_args(args);
  launch_by_piece(add_rows_kernel, AddRows{args, has_vectors(args.in) && has_vectors(args.out)}, args.live_rows,
                  std::min(args.in.rows, args.out.rows), args.in.dim, "add_rows", exec);
}

}  // namespace quire::ops::cuda
