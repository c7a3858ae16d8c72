// Who computes a product on the GPU.
#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/cuda_call.h"
#include "ops/cublaslt.h"
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_cuda.cuh"
#include "ops/matmul_task.h"

namespace quire::ops::cuda {
namespace {

using quire::cuda::launch_after;

Product product_of(const MatmulArgs& args) {
  const PackedMatrix& weights = *args.weights;
  return {.weights = weights.rows(),
          .in = args.in.bf16,
          .out = args.out.data,
          .bias = args.bias,
          .live_rows = args.live_rows,
          .out_stride = args.out.stride,
          .outputs = static_cast<int32_t>(weights.outputs()),
          .inputs = static_cast<int32_t>(weights.inputs()),
          .room = static_cast<int32_t>(std::min(args.in.rows, args.out.rows)),
          .scale = args.scale,
          .store = args.store,
          .join = weights.join()};
}

// --- what cuBLASLt leaves to do

constexpr int32_t kFinishThreads = 256;

struct Finish {
  Product product;
  const float* sums;  // [rows, weight rows]
  int64_t weight_rows;
  int32_t first_row;  // of the room
};

// grid: pairs of weight rows, rows
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ Finish f) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const int32_t pair = blockIdx.x * kFinishThreads + threadIdx.x, token = f.first_row + static_cast<int32_t>(blockIdx.y);
  const int32_t row = pair / 8 * 16 + pair % 8;
  if (row >= f.weight_rows || token >= live_rows_of(f.product)) return;
  const float* sums = f.sums + blockIdx.y * f.weight_rows + row;
  finish(f.product, row, token, __ldcg(sums), __ldcg(sums + kHalfGroup));
}

void launch_finish(const Finish& f, int32_t rows, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>((f.weight_rows / 2 + kFinishThreads - 1) / kFinishThreads);
  launch_after(finish_kernel, dim3(blocks, static_cast<uint32_t>(rows)), kFinishThreads, 0, stream, "matmul", f);
}

bool is_plain(const Product& p) { return p.join == PackedMatrix::Join::stack && !p.bias; }

}  // namespace

void multiply_by_library(const Product& p, cudaStream_t stream) {
  if (is_plain(p))
    return cublaslt_multiply({.weights = p.weights,
                              .in = p.in,
                              .out = p.out,
                              .outputs = p.outputs,
                              .inputs = p.inputs,
                              .rows = p.room,
                              .out_stride = p.out_stride,
                              .scale = p.scale,
                              .add = p.store == Store::add},
                             stream);
  const std::span<float> scratch = cublaslt_scratch(stream);
  const int64_t weight_rows = p.weight_rows();
  const auto at_once = static_cast<int32_t>(std::min<int64_t>(512, static_cast<int64_t>(scratch.size()) / weight_rows));
  check(at_once > 0, "a product of ", weight_rows, " outputs is too wide for cuBLASLt's memory");
  for (int32_t first = 0; first < p.room; first += at_once) {
    const int32_t rows = std::min(at_once, p.room - first);
    cublaslt_multiply({.weights = p.weights,
                       .in = p.in + static_cast<int64_t>(first) * p.inputs,
                       .out = scratch.data(),
                       .outputs = static_cast<int32_t>(weight_rows),
                       .inputs = p.inputs,
                       .rows = rows,
                       .out_stride = weight_rows,
                       .scale = 1,
                       .add = false},
                      stream);
    launch_finish({p, scratch.data(), weight_rows, first}, rows, stream);
  }
}

void prepare_matmul(Exec& exec) { prepare_cublaslt(quire::cuda::stream_of(exec)); }

void matmul(const MatmulArgs& args, Exec& exec) {
  cpu::check_matmul(args, exec);
  if (!is_dense(args.weights->parts()[0].type)) return multiply_blocks(args, exec);
  check(args.in.bf16 != nullptr && reinterpret_cast<uintptr_t>(args.in.bf16) % 16 == 0,
        "rows of a product on a GPU begin at a multiple of 16 bytes");
  const Product product = product_of(args);
  const cudaStream_t stream = quire::cuda::stream_of(exec);
  if (product.room == 0) return;
  if (product.room > kMostOwnRows && has_cublaslt()) return multiply_by_library(product, stream);
  (suits_ring(product) ? multiply_ring : multiply_small)(product, stream);
}

}  // namespace quire::ops::cuda
