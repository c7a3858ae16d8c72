#include "ops/check_args.h"
#include "ops/fill_activations.cuh"

namespace quire::ops::cuda {
namespace {

struct Quantise {
  QuantiseArgs args;
  bool vectors;
};

__global__ void __launch_bounds__(kPieceThreads) quantise_kernel(const __grid_constant__ Quantise q) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x, at = first_of_thread();
  if (row >= *q.args.live_rows) return;
  const int64_t dim = q.args.in.dim;
  const float4 x = at < dim ? load_four(q.args.in.row(row), at, dim, q.vectors) : float4{};
  fill_four(q.args.out, row, at, q.vectors, x);
}

}  // namespace

void quantise(const QuantiseArgs& args, Exec& exec) {
  check_args(args, Device::cuda);
  launch_by_piece(quantise_kernel, Quantise{args, has_vectors(args.in) && has_vectors(args.out)}, args.live_rows,
                  std::min(args.in.rows, args.out.rows), args.in.dim, "quantise", exec);
}

}  // namespace quire::ops::cuda
