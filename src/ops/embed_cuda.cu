// Rows by index on the GPU: a thread takes four numbers. The places of numbers in the file's blocks are those that
// base/blocks.cc describes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>

#include "ops/by_row_cuda.cuh"
#include "ops/check_args.h"

namespace quire::ops::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// --- numbers in blocks

__device__ int32_t byte_at(const std::byte* block, int32_t at) { return static_cast<int32_t>(block[at]); }
__device__ int32_t signed_at(const std::byte* block, int32_t at) { return static_cast<int8_t>(block[at]); }
__device__ float half_at(const std::byte* block, int32_t at) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(byte_at(block, at) | byte_at(block, at + 1) << 8)));
}
__device__ float times(int32_t quant, float scale) { return __fmul_rn(static_cast<float>(quant), scale); }

// Number i of a block of 32 whose nibbles begin at a byte: i and i + 16 share one.
__device__ int32_t nibble(const std::byte* block, int32_t first, int32_t i) {
  return byte_at(block, first + i % 16) >> (i / 16 * 4) & 15;
}
__device__ int32_t fifth_bit(const std::byte* block, int32_t first, int32_t i) {
  return (byte_at(block, first + i / 8) >> (i % 8) & 1) << 4;
}

struct GroupScale {
  float scale, least;
};
__device__ GroupScale group_scale(const std::byte* block, int32_t group) {
  const std::byte* packed = block + 4;
  const auto at = [&](int32_t i) { return byte_at(packed, i); };
  const int32_t scale = group < 4 ? at(group) & 63 : (at(group + 4) & 15) | at(group - 4) >> 6 << 4;
  const int32_t least = group < 4 ? at(group + 4) & 63 : at(group + 4) >> 4 | at(group) >> 6 << 4;
  return {times(scale, half_at(block, 0)), times(least, half_at(block, 2))};
}

template <BlockType T>
__device__ float number_of_32(const std::byte* block, int32_t i) {
  if constexpr (T == BlockType::q8_0) return times(signed_at(block, 2 + i), half_at(block, 0));
  if constexpr (T == BlockType::q4_0) return times(nibble(block, 2, i) - 8, half_at(block, 0));
  if constexpr (T == BlockType::q5_0)
    return times((nibble(block, 6, i) | fifth_bit(block, 2, i)) - 16, half_at(block, 0));
  if constexpr (T == BlockType::q4_1)
    return __fadd_rn(times(nibble(block, 4, i), half_at(block, 0)), half_at(block, 2));
  if constexpr (T == BlockType::q5_1)
    return __fadd_rn(times(nibble(block, 8, i) | fifth_bit(block, 4, i), half_at(block, 0)), half_at(block, 2));
}

template <BlockType T>
__device__ float number_of_256(const std::byte* block, int32_t i) {
  const int32_t run = i / 32, within = i % 32;  // runs of 32
  if constexpr (T == BlockType::q6_k) {
    const int32_t half = run / 4, quarter = run % 4;
    const int32_t low = byte_at(block, half * 64 + quarter % 2 * 32 + within) >> (quarter / 2 * 4) & 15;
    const int32_t high = byte_at(block, 128 + half * 32 + within) >> (quarter * 2) & 3;
    return times((low | high << 4) - 32, times(signed_at(block, 192 + i / 16), half_at(block, 208)));
  } else {
    constexpr bool kFifth = T == BlockType::q5_k;
    const GroupScale own = group_scale(block, run);
    int32_t quant = byte_at(block, (kFifth ? 48 : 16) + run / 2 * 32 + within) >> (run % 2 * 4) & 15;
    if (kFifth) quant |= (byte_at(block, 16 + within) >> run & 1) << 4;
    return __fsub_rn(times(quant, own.scale), own.least);
  }
}

struct Embed {
  EmbedArgs args;
  int64_t row_bytes;  // of the table
  int32_t block_elements, block_bytes;
  bool vectors;
};

template <BlockType T>
__device__ float number(const Embed& e, const std::byte* row, int64_t at) {
  if constexpr (T == BlockType::f32) return reinterpret_cast<const float*>(row)[at];
  if constexpr (T == BlockType::f16) return __half2float(reinterpret_cast<const __half*>(row)[at]);
  if constexpr (T == BlockType::bf16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(row)[at]);
  const std::byte* block = row + at / e.block_elements * e.block_bytes;
  const auto within = static_cast<int32_t>(at % e.block_elements);
  if constexpr (T >= BlockType::q4_k) return number_of_256<T>(block, within);
  if constexpr (T >= BlockType::q8_0 && T < BlockType::q4_k) return number_of_32<T>(block, within);
}

// --- kernels

template <BlockType T>
__global__ void __launch_bounds__(kPieceThreads) embed_kernel(const __grid_constant__ Embed e) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x, at = first_of_thread(), dim = e.args.out.dim;
  if (row >= *e.args.live_rows || at >= dim) return;
  const int32_t id = e.args.ids[row];
  const bool known = id >= 0 && id < e.args.table.outputs;
  const std::byte* blocks = e.args.table.data + id * e.row_bytes;
  float x[kFour] = {kNan, kNan, kNan, kNan};
#pragma unroll
  for (int32_t k = 0; k < kFour; ++k)
    if (known && at + k < dim) {
      x[k] = number<T>(e, blocks, at + k);
      if (e.args.scale != 1) x[k] = __fmul_rn(x[k], e.args.scale);
    }
  store_four(e.args.out.row(row), at, dim, e.vectors, {x[0], x[1], x[2], x[3]});
}

struct Gather {
  GatherArgs args;
  bool vectors;
};

__global__ void __launch_bounds__(kPieceThreads) gather_kernel(const __grid_constant__ Gather g) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t row = blockIdx.x, at = first_of_thread(), dim = g.args.out.dim;
  if (row >= *g.args.live_rows || at >= dim) return;
  const int32_t from = g.args.index[row];
  float4 x = {kNan, kNan, kNan, kNan};
  if (from >= 0 && from < g.args.in.rows) x = load_four(g.args.in.row(from), at, dim, g.vectors);
  store_four(g.args.out.row(row), at, dim, g.vectors, x);
}

using EmbedKernel = void (*)(Embed);

EmbedKernel kernel_of(BlockType type) {
  switch (type) {
    case BlockType::f32:
      return embed_kernel<BlockType::f32>;
    case BlockType::f16:
      return embed_kernel<BlockType::f16>;
    case BlockType::bf16:
      return embed_kernel<BlockType::bf16>;
    case BlockType::q8_0:
      return embed_kernel<BlockType::q8_0>;
    case BlockType::q4_0:
      return embed_kernel<BlockType::q4_0>;
    case BlockType::q4_1:
      return embed_kernel<BlockType::q4_1>;
    case BlockType::q5_0:
      return embed_kernel<BlockType::q5_0>;
    case BlockType::q5_1:
      return embed_kernel<BlockType::q5_1>;
    case BlockType::q4_k:
      return embed_kernel<BlockType::q4_k>;
    case BlockType::q5_k:
      return embed_kernel<BlockType::q5_k>;
    case BlockType::q6_k:
      return embed_kernel<BlockType::q6_k>;
    case BlockType::f8_e4m3:
      break;
  }
  throw CheckError(cat("embed from a table of type ", type));
}

}  // namespace

void embed(const EmbedArgs& args, Exec& exec) {
  check_args(args);
  const BlockShape block = shape_of(args.table.type);
  const Embed embed{.args = args,
                    .row_bytes = args.table.row_stride(),
                    .block_elements = block.elements,
                    .block_bytes = block.bytes,
                    .vectors = has_vectors(args.out)};
  launch_by_piece(kernel_of(args.table.type), embed, args.live_rows, args.out.rows, args.out.dim, "embed", exec);
}

void gather_rows(const GatherArgs& args, Exec& exec) {
  check_args(args);
  launch_by_piece(gather_kernel, Gather{args, has_vectors(args.in) && has_vectors(args.out)}, args.live_rows,
                  args.out.rows, args.out.dim, "gather_rows", exec);
}

}  // namespace quire::ops::cuda
