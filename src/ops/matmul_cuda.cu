// Who computes a product on the GPU.
#include <algorithm>
#include <limits>
#include <span>

#include "base/check.h"
#include "base/cuda_call.h"
#include "ops/cublaslt.h"
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_choice.h"
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
          .in_stride = args.in.bf16_stride ? args.in.bf16_stride : args.in.dim,
          .out_stride = args.out.stride,
          .outputs = static_cast<int32_t>(weights.outputs()),
          .inputs = static_cast<int32_t>(weights.inputs()),
          .room = static_cast<int32_t>(std::min(args.in.rows, args.out.rows)),
          .scale = args.scale,
          .norm_eps = args.fusions.norm_eps,
          .store = args.store,
          .join = weights.join(),
          .bf16_out = args.fusions.bf16_out,
          .squares = args.fusions.squares,
          .next = args.fusions.next,
          .has_heads = args.fusions.heads != nullptr,
          .heads = args.fusions.heads ? *args.fusions.heads : HeadTargets{}};
}

void check_rows(const Product& p) {
  check(p.in != nullptr && reinterpret_cast<uintptr_t>(p.in) % 16 == 0 && p.in_stride % kRowInputs == 0,
        "rows of a product on a GPU begin at multiples of 16 bytes");
  check(!p.bf16_out || p.store != Store::add, "a product does not add to rows of bf16");
}

void check_fusions(const Product& p, bool fuses) {
  if (!p.squares && !p.next.weight && !p.has_heads) return;
  check(fuses, "a product of ", p.outputs, " outputs with room for ", p.room, " rows fuses nothing");
  check(!p.squares || p.inputs % kRowGroup == 0, "squares of ", p.inputs, " numbers are no whole groups");
  check(!p.next.weight || (p.store == Store::add && p.join == PackedMatrix::Join::stack && p.outputs % kRowGroup == 0),
        "a product of ", p.outputs, " outputs leaves no stream for the next norm");
}

// --- what cuBLASLt leaves to do

constexpr int32_t kFinishThreads = 256;
constexpr int64_t kMostUnfinished = 512;  // rows

struct SumsToFinish {
  Product product;
  const void* sums;  // [rows, weight rows] f32, or bf16 for silu
  int64_t weight_rows;
  int32_t first_row;  // of the room
};

// grid: pairs of weight rows, rows
template <PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kFinishThreads) finish_kernel(const __grid_constant__ SumsToFinish f) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const int32_t pair = blockIdx.x * kFinishThreads + threadIdx.x,
                token = f.first_row + static_cast<int32_t>(blockIdx.y);
  const int32_t row = pair / 8 * 16 + pair % 8;
  if (row >= f.weight_rows || token >= live_rows_of(f.product)) return;
  const float* sums = static_cast<const float*>(f.sums) + blockIdx.y * f.weight_rows + row;
  Finish<kJoin>(f.product, row, token).store(f.product, __ldcg(sums), __ldcg(sums + kHalfGroup));
}

void launch_finish(const SumsToFinish& f, int32_t rows, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>((f.weight_rows / 2 + kFinishThreads - 1) / kFinishThreads);
  const auto kernel = f.product.join == PackedMatrix::Join::stack ? finish_kernel<PackedMatrix::Join::stack>
                                                                  : finish_kernel<PackedMatrix::Join::gate_and_up>;
  launch_after(kernel, dim3(blocks, static_cast<uint32_t>(rows)), kFinishThreads, 0, stream, "matmul", f);
}

// Gates and ups in bf16, eight of each side by side, to as many results in bf16: half of the bytes that f32 would take,
// and with kMostUnfinished rows they stay in the second cache.
bool is_narrow_silu(const Product& p) {
  const bool in_pieces = reinterpret_cast<uintptr_t>(p.out) % sizeof(uint4) == 0 && p.out_stride % 4 == 0;
  return p.store == Store::silu_mul && p.bf16_out && !p.bias && p.outputs % kRowGroup == 0 && in_pieces;
}

__device__ uint32_t silu_mul(uint32_t gates, uint32_t ups) {
  const float2 gate = __bfloat1622float2(quire::cuda::bits_as<__nv_bfloat162>(gates));
  const float2 up = __bfloat1622float2(quire::cuda::bits_as<__nv_bfloat162>(ups));
  return quire::cuda::pair<__nv_bfloat16>(silu(gate.x) * up.x, silu(gate.y) * up.y);
}

constexpr int32_t kSiluGroups = 2;  // of a thread, both on their way before the live count is known

// grid: groups of eight results, rows
__global__ void __launch_bounds__(kFinishThreads) silu_kernel(const __grid_constant__ SumsToFinish f) {
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  const int32_t first = blockIdx.x * kFinishThreads * kSiluGroups + threadIdx.x,
                token = f.first_row + static_cast<int32_t>(blockIdx.y);
  const auto groups = static_cast<int32_t>(f.weight_rows / kRowGroup);
  const auto* sums = static_cast<const uint4*>(f.sums) + static_cast<int64_t>(blockIdx.y) * groups * 2;
  uint4 gates[kSiluGroups], ups[kSiluGroups];
#pragma unroll
  for (int32_t i = 0; i < kSiluGroups; ++i) {
    const int32_t group = min(first + i * kFinishThreads, groups - 1);
    gates[i] = __ldcg(sums + group * 2);
    ups[i] = __ldcg(sums + group * 2 + 1);
  }
  if (token >= live_rows_of(f.product)) return;
  auto* out = reinterpret_cast<uint4*>(f.product.out + token * f.product.out_stride);
#pragma unroll
  for (int32_t i = 0; i < kSiluGroups; ++i)
    if (const int32_t group = first + i * kFinishThreads; group < groups)
      out[group] = {silu_mul(gates[i].x, ups[i].x), silu_mul(gates[i].y, ups[i].y), silu_mul(gates[i].z, ups[i].z),
                    silu_mul(gates[i].w, ups[i].w)};
}

void launch_silu(const SumsToFinish& f, int32_t rows, cudaStream_t stream) {
  constexpr int32_t kGroups = kFinishThreads * kSiluGroups;
  const auto blocks = static_cast<uint32_t>((f.weight_rows / kRowGroup + kGroups - 1) / kGroups);
  launch_after(silu_kernel, dim3(blocks, static_cast<uint32_t>(rows)), kFinishThreads, 0, stream, "matmul", f);
}

void multiply_quantised(const MatmulArgs& args, cudaStream_t stream) {
  const MatmulFusions& f = args.fusions;
  check(!f.bf16_out && !f.squares && !f.next.weight && !f.heads, "products of quantised weights fuse nothing of these");
  (suits_dequantised(args) && !args.deterministic ? multiply_dequantised : multiply_blocks)(args, stream);
}

// --- products by cuBLASLt

LibraryProduct plain_product(const Product& p) {
  return {.weights = p.weights,
          .in = p.in,
          .out = p.out,
          .outputs = p.outputs,
          .inputs = p.inputs,
          .rows = p.room,
          .in_stride = p.in_stride,
          .out_stride = p.out_stride,
          .scale = p.scale,
          .add = p.store == Store::add};
}

// Some rows at a time into the stream's scratch.
struct Unfinished {
  Unfinished(const Product& p, cudaStream_t stream) : scratch(cublaslt_scratch(stream)) {
    const int64_t row_bytes = int64_t{p.weight_rows()} * (is_narrow_silu(p) ? 2 : 4);
    at_once =
        static_cast<int32_t>(std::min<int64_t>(kMostUnfinished, static_cast<int64_t>(scratch.size()) / row_bytes));
    check(at_once > 0, "a product of ", p.weight_rows(), " outputs is too wide for cuBLASLt's memory");
  }
  LibraryProduct product(const Product& p, int32_t first) const {
    return {.weights = p.weights,
            .in = p.in + first * p.in_stride,
            .out = scratch.data(),
            .outputs = p.weight_rows(),
            .inputs = p.inputs,
            .rows = std::min(at_once, p.room - first),
            .in_stride = p.in_stride,
            .out_stride = p.weight_rows(),
            .scale = 1,
            .add = false,
            .bf16_out = is_narrow_silu(p)};
  }

  std::span<std::byte> scratch;
  int32_t at_once;  // rows
};

// Of a matrix that does not suit the ring. Tiles come in boxes of 8 rows side by side, which neighbours in pairs are
// not.
bool takes_tiles(const Product& p, bool deterministic) {
  return p.room > kFewSmallRows && p.room <= kMostTilesRows && !deterministic && suits_tiles(p.inputs) &&
         !(p.has_heads && p.heads.adjacent_pairs);
}
int64_t most_small_rows(const PackedMatrix& weights) {
  if (!suits_tiles(weights.inputs())) return kMostSmallRows;
  return row_count(weights.join(), weights.outputs()) <= kMostTilesOutputs ? kMostTilesRows : kMostHundredRows;
}

bool takes_gates(const Product& p, bool deterministic) {
  return p.room > kMostStreamRows && p.room <= kMostGatesRows && !deterministic && is_narrow_silu(p) &&
         suits_ring(p.join, p.outputs, p.inputs) && suits_gates(p.weight_rows());
}

bool is_in_fours(const void* numbers) { return reinterpret_cast<uintptr_t>(numbers) % sizeof(float4) == 0; }

// Heads alone lie where they were checked to.
bool takes_split_k(const Product& p, bool deterministic) {
  const bool in_fours = p.has_heads || (is_in_fours(p.out) && p.out_stride % 4 == 0 && p.outputs % 4 == 0 &&
                                        is_in_fours(p.next.weight) && is_in_fours(p.next.rows));
  return p.room > kMostStreamRows && p.room <= kMostFusedRows && !deterministic &&
         p.join == PackedMatrix::Join::stack && !p.bf16_out && in_fours && is_in_fours(p.bias) &&
         suits_ring(p.join, p.outputs, p.inputs) && suits_split_k(p.weight_rows(), p.inputs);
}

bool is_plain(const Product& p) { return p.join == PackedMatrix::Join::stack && !p.bias && !p.bf16_out; }

}  // namespace

void multiply_by_library(const Product& p, cudaStream_t stream) {
  if (is_plain(p)) return cublaslt_multiply(plain_product(p), stream);
  const Unfinished unfinished(p, stream);
  for (int32_t first = 0; first < p.room; first += unfinished.at_once) {
    const LibraryProduct product = unfinished.product(p, first);
    cublaslt_multiply(product, stream);
    (product.bf16_out ? launch_silu : launch_finish)({p, product.out, product.outputs, first}, product.rows, stream);
  }
}

int32_t multiprocessors() {
  static const int32_t count = [] {
    int device = 0, found = 0;
    quire::cuda::check_cuda(cudaGetDevice(&device), "no device");
    quire::cuda::check_cuda(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device),
                            "the device says nothing");
    return found;
  }();
  return count;
}

std::string kernel_of(const MatmulArgs& args, Exec& exec) {
  if (args.weights->is_fp8()) return args.in.rows <= most_own_rows(*args.weights) ? "fp8" : "dequantised";
  if (args.weights->forms().q8) return suits_dequantised(args) && !args.deterministic ? "dequantised" : "blocks";
  const Product p = product_of(args);
  const cudaStream_t stream = quire::cuda::stream_of(exec);
  if (takes_gates(p, args.deterministic)) return "gates";
  if (takes_split_k(p, args.deterministic)) return "split_k";
  if (p.room > most_own_rows(*args.weights) && !args.deterministic)
    return cublaslt_choice(is_plain(p) ? plain_product(p) : Unfinished(p, stream).product(p, 0));
  if (!suits_ring(p.join, p.outputs, p.inputs)) return takes_tiles(p, args.deterministic) ? "tiles" : "small";
  return p.room <= kMostStreamRows && !args.deterministic ? "stream" : "ring";
}

void prepare_matmul(Exec& exec) {
  prepare_cublaslt(quire::cuda::stream_of(exec));
  prepare_ring(quire::cuda::stream_of(exec));
}

void prepare_quantised_matmul(Exec& exec) {
  prepare_matmul(exec);
  if (has_cublaslt()) prepare_dequantised(quire::cuda::stream_of(exec));
}

int64_t most_own_rows(const PackedMatrix& weights) {
  constexpr int64_t kFp8 = 16;
  if (!has_cublaslt()) return std::numeric_limits<int64_t>::max();
  if (weights.is_fp8()) return kFp8;
  if (!is_dense(weights.parts()[0].type)) return kMostExactRows;
  return suits_ring(weights.join(), weights.outputs(), weights.inputs()) ? kMostStreamRows : most_small_rows(weights);
}

int64_t most_fused_rows(const PackedMatrix& weights) {
  if (weights.is_fp8()) return kMostStreamRows;
  if (!is_dense(weights.parts()[0].type)) return 0;
  if (!suits_ring(weights.join(), weights.outputs(), weights.inputs())) return most_small_rows(weights);
  const int64_t rows = row_count(weights.join(), weights.outputs());
  const bool suits =
      weights.join() == PackedMatrix::Join::stack ? suits_split_k(rows, weights.inputs()) : suits_gates(rows);
  return suits ? kMostFusedRows : kMostStreamRows;
}

int64_t width_of(const HeadTargets& h) {
  return int64_t{h.heads} * h.key_dim + int64_t{h.kv_heads} * (h.key_dim + h.value_dim);
}

bool stores_heads(const PackedMatrix& weights, const HeadTargets& h, int64_t rows) {
  const bool is_large =
      suits_ring(weights.join(), weights.outputs(), weights.inputs());  // in boxes of rows side by side
  if (is_large && rows > kMostStreamRows && !stores_heads_by_split_k(h)) return false;
  return rows <= most_fused_rows(weights) && !weights.is_fp8() && h.key_dim % kRowGroup == 0 &&
         h.value_dim % kRowGroup == 0 && h.half % kHalfGroup == 0 && h.kv_type != Dtype::f8e4m3 &&
         !(is_large && h.adjacent_pairs);
}

void matmul(const MatmulArgs& args, Exec& exec) {
  cpu::check_matmul(args, exec);
  if (args.weights->forms().q8) return multiply_quantised(args, quire::cuda::stream_of(exec));
  const Product p = product_of(args);
  check_rows(p);
  const bool gates = takes_gates(p, args.deterministic), split_k = takes_split_k(p, args.deterministic);
  const bool is_large = suits_ring(p.join, p.outputs, p.inputs);
  check_fusions(p, p.room == 0 || (!args.deterministic && p.room <= most_fused_rows(*args.weights) &&
                                   (gates || split_k || !is_large || p.room <= kMostStreamRows)));
  check(!p.has_heads || stores_heads(*args.weights, p.heads, p.room), "a product of ", p.room,
        " rows does not store heads of ", p.heads.key_dim);
  check(!p.has_heads || p.outputs == width_of(p.heads), "a product of ", p.outputs, " outputs stores no heads of ",
        width_of(p.heads), " numbers");
  const cudaStream_t stream = quire::cuda::stream_of(exec);
  if (p.room == 0) return;
  const bool own = p.room <= most_own_rows(*args.weights) || args.deterministic;
  if (args.weights->is_fp8()) return multiply_fp8(p, *args.weights, own, stream);
  if (gates) return multiply_gates(p, stream);
  if (split_k) return multiply_split_k(p, stream);
  if (!own) return multiply_by_library(p, stream);
  if (!suits_ring(p.join, p.outputs, p.inputs))
    return (takes_tiles(p, args.deterministic) ? multiply_tiles : multiply_small)(p, stream);
  (p.room <= kMostStreamRows && !args.deterministic ? multiply_stream : multiply_ring)(p, stream);
}

}  // namespace quire::ops::cuda
