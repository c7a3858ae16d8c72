// Products with weights of F8_E4M3 (packed_fp8.h): for few rows they pass through rings of shared memory as they are,
// are widened to bf16 in registers, which is exact, and multiplied by tensor cores; weights are the M side, tokens the
// N side. For many rows they become bf16 in memory of the stream's own, a slice of rows at a time, and the library
// multiplies them.
//
// A strip of 16 weight rows is one block's, which has some that lie side by side. Its pieces of 128 inputs are dealt to
// eight warps in turn; eight neighbours are a stage of the ring, one copy that a warp of its own asks for, and the ring
// is full before the kernel before has ended. An output is eight sums, each in ascending order of its pieces, sum =
// fma(sum of the piece, its scale, sum), then added in the order of the warps: a row's bits depend on nothing but the
// row and the weights.
#include <algorithm>

#include "base/hopper.cuh"
#include "ops/by_row_cuda.cuh"
#include "ops/cublaslt.h"
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_end_cuda.cuh"
#include "ops/packed_fp8.h"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kPieceWarps = 8, kMultiplying = kPieceWarps * kWarp, kFp8Threads = kMultiplying + kWarp;
constexpr int32_t kMostPieceStages = 12;
constexpr int32_t kFp8StageBytes = kPieceWarps * static_cast<int32_t>(kFp8PieceBytes);
constexpr int32_t kFewRowsStages = 4;                             // at least
constexpr int64_t kTwoBlocks = 112 << 10, kOneBlock = 224 << 10;  // of shared memory
constexpr int32_t kTokenTile = 8;
static_assert(kTokenTile <= kPieceWarps);  // a warp has the factor of a token's norm

struct Fp8Product {
  Product product;
  const std::byte* strips;
  const float* row_scales;
  int32_t pieces, strip_count;
  int32_t rows;  // of a block
  int32_t stages;

  __host__ __device__ int32_t token_stride() const { return product.inputs * 2 + 64; }  // bytes; banks of their own
};

struct Fp8Memory {
  Barrier full[kMostPieceStages], empty[kMostPieceStages];
  float4 sums[2][kPieceWarps][kWarp];     // of two strips in turn
  alignas(16) float factors[kTokenTile];  // of the tokens' norms
};

// --- single instructions

__device__ void bulk_load_pieces([[maybe_unused]] uint32_t to, [[maybe_unused]] const std::byte* from,
                                 [[maybe_unused]] int32_t bytes, [[maybe_unused]] Barrier* barrier) {
#if QUIRE_HOPPER
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(quire::cuda::shared_address(barrier))
               : "memory");
#endif
}

struct WidePairs {
  uint32_t first, second;  // of bf16
};
// Exponents of both types begin at different numbers: what the bits say as bf16 is 2^120 times too small.
__device__ WidePairs widened(uint32_t bytes) {
  const auto pair = [](uint32_t upper) {
    const uint32_t moved = (upper & 0x80008000u) | (upper & 0x7f007f00u) >> 4;
    const auto two_to_120 = __nv_bfloat162{__ushort_as_bfloat16(0x7b80), __ushort_as_bfloat16(0x7b80)};
    const __nv_bfloat162 number = __hmul2(quire::cuda::bits_as<__nv_bfloat162>(moved), two_to_120);
    return quire::cuda::bits_as<uint32_t>(number);
  };
  return {pair(bytes), pair(bytes << 8)};
}

// --- few rows

// The block's strips.
struct StripRange {
  int32_t first, end;
};
__device__ StripRange own_strips(const Fp8Product& f) {
  const auto blocks = static_cast<int32_t>(gridDim.x), block = static_cast<int32_t>(blockIdx.x);
  const int32_t each = f.strip_count / blocks, more = f.strip_count % blocks;
  const int32_t first = block * each + min(block, more);
  return {first, first + each + (block < more ? 1 : 0)};
}

// By one thread: stage after stage of the block's strips.
__device__ void feed_strips(const Fp8Product& f, Fp8Memory& memory, std::byte* ring) {
  PipelineState place;
  int32_t filled = 0;
  const StripRange own = own_strips(f);
#pragma unroll 1
  for (int32_t strip = own.first; strip < own.end; ++strip)
#pragma unroll 1
    for (int32_t piece = 0; piece < f.pieces; piece += kPieceWarps) {
      Barrier* full = &memory.full[place.stage];
      if (filled < f.stages)
        ++filled;
      else
        wait(&memory.empty[place.stage], place.phase ^ 1);
      const int32_t bytes = min(kPieceWarps, f.pieces - piece) * static_cast<int32_t>(kFp8PieceBytes);
      arrive_expect_tx(full, bytes);
      bulk_load_pieces(quire::cuda::shared_address(ring + place.stage * kFp8StageBytes),
                       f.strips + (static_cast<int64_t>(strip) * f.pieces + piece) * kFp8PieceBytes, bytes, full);
      place.next(f.stages);
    }
}

// Tokens [first, first + count) of the rows to shared memory.
__device__ void bring_tokens(const Fp8Product& f, std::byte* tokens, int32_t first, int32_t count) {
  const int32_t sixteens = f.product.inputs / 8;
  for (int32_t token = 0; token < count; ++token)
    for (int32_t i = threadIdx.x; i < sixteens; i += kMultiplying)
      quire::cuda::cp_async(quire::cuda::shared_address(tokens + token * f.token_stride() + i * 16),
                            f.product.in + (first + token) * f.product.in_stride + i * 8);
  quire::cuda::cp_async_commit();
  quire::cuda::cp_async_wait<0>();
}

// sums += the piece's; `token`: the lane's row from the piece's first input on.
__device__ void multiply_piece(float (&sums)[4], const std::byte* piece, const std::byte* token) {
  constexpr int32_t kQuarters = 4;
  const int32_t lane = threadIdx.x % kWarp;
  float own[4] = {}, other[4] = {};  // sums of steps in turn, which do not wait for each other
#pragma unroll
  for (int32_t quarter = 0; quarter < kQuarters; ++quarter) {
    const uint4 w = *reinterpret_cast<const uint4*>(piece + quarter * 512 + lane * 16);
    const uint4 x = *reinterpret_cast<const uint4*>(token + quarter * 64 + lane % 4 * 16);
    WidePairs upper = widened(w.x), lower = widened(w.z);
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(own, {upper.first, lower.first, upper.second, lower.second}, x.x, x.y);
    upper = widened(w.y);
    lower = widened(w.w);
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(other, {upper.first, lower.first, upper.second, lower.second}, x.z, x.w);
  }
  const float2 scale = *reinterpret_cast<const float2*>(piece + kFp8PieceWeights);
  sums[0] = __fmaf_rn(own[0] + other[0], scale.x, sums[0]);
  sums[1] = __fmaf_rn(own[1] + other[1], scale.x, sums[1]);
  sums[2] = __fmaf_rn(own[2] + other[2], scale.y, sums[2]);
  sums[3] = __fmaf_rn(own[3] + other[3], scale.y, sums[3]);
}

// grid: blocks that share the strips, groups of `rows` tokens
template <PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kFp8Threads, 2) fp8_kernel(const __grid_constant__ Fp8Product f) {
  extern __shared__ uint4 fp8_shared[];
  Fp8Memory& memory = *reinterpret_cast<Fp8Memory*>(fp8_shared);
  std::byte* tokens = reinterpret_cast<std::byte*>(&memory + 1);
  const Product& p = f.product;
  const int32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  std::byte* ring = tokens + f.rows * f.token_stride();
  griddep_launch_dependents();
  if (threadIdx.x == kMultiplying) {
    for (int32_t i = 0; i < f.stages; ++i) {
      init_barrier(&memory.full[i], 1);
      init_barrier(&memory.empty[i], kPieceWarps);
    }
    fence_proxy_async();
  }
  __syncthreads();
  if (warp == kPieceWarps) {
    if (lane == 0) feed_strips(f, memory, ring);
    return;
  }
  griddep_wait();
  // Nothing but its stores waits for the number of live rows: all of the room are brought. Columns past them are given
  // the last one, and their results are nobody's.
  const int32_t first_token = blockIdx.y * f.rows, there = min(p.room - first_token, f.rows);
  bring_tokens(f, tokens, first_token, there);
  const int32_t live = min(live_rows_of(p) - first_token, there);
  if (p.squares) {
    constexpr int32_t kGroupsAhead = 8;
    const float factor = RowFactor<kGroupsAhead>(p, warp < there ? first_token + warp : p.room).value(p);
    if (lane == 0) memory.factors[warp] = factor;
  }
  quire::cuda::named_barrier_sync(1, kMultiplying);
  const std::byte* token = tokens + min(lane / 4, there - 1) * f.token_stride();

  int32_t turn = 0;
  PipelineState place;
  const StripRange own = own_strips(f);
#pragma unroll 1
  for (int32_t strip = own.first; strip < own.end; ++strip, ++turn) {
    // What this thread stores in the end, if it does: the lane's pair of outputs for two tokens.
    const int32_t row = strip * static_cast<int32_t>(kRowGroup) + lane / 4, at = lane % 4 * 2;
    const bool finishes = turn % kPieceWarps == warp;
    RowsEnd<kJoin> even(p, strip), odd(p, strip);
    float upper = 0, lower = 0;
    if (finishes) {
      even.load(p, at < there ? first_token + at : p.room);
      odd.load(p, at + 1 < there ? first_token + at + 1 : p.room);
      upper = f.row_scales[row];
      lower = f.row_scales[row + kHalfGroup];
    }
    float sums[4] = {};
#pragma unroll 1
    for (int32_t piece = warp; piece - warp < f.pieces; piece += kPieceWarps) {
      wait(&memory.full[place.stage], place.phase);
      if (piece < f.pieces)
        multiply_piece(sums, ring + place.stage * kFp8StageBytes + warp * kFp8PieceBytes,
                       token + piece * kFp8PieceInputs * 2);
      __syncwarp();
      if (lane == 0) arrive(&memory.empty[place.stage]);
      place.next(f.stages);
    }
    float4(&parts)[kPieceWarps][kWarp] = memory.sums[turn % 2];
    parts[warp][lane] = {sums[0], sums[1], sums[2], sums[3]};
    quire::cuda::named_barrier_sync(1, kMultiplying);
    if (!finishes) continue;
    float4 sum = parts[0][lane];
#pragma unroll
    for (int32_t w = 1; w < kPieceWarps; ++w) {
      const float4 more = parts[w][lane];
      sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
    const float2 factors = p.squares ? *reinterpret_cast<const float2*>(memory.factors + at) : float2{1, 1};
    even.store(p, sum.x * upper * factors.x, sum.z * lower * factors.x, at < live);
    odd.store(p, sum.y * upper * factors.y, sum.w * lower * factors.y, at + 1 < live);
  }
}

int64_t shared_of(const Fp8Product& f) {
  return int64_t{sizeof(Fp8Memory)} + int64_t{f.rows} * f.token_stride() +
         int64_t{f.stages} * kPieceWarps * kFp8PieceBytes;
}

// As many rows at a time as there is room for beside a few stages; of one row so many stages that two blocks fit.
void place_rows(Fp8Product& f) {
  f.stages = kFewRowsStages;
  f.rows = std::min(f.product.room, kTokenTile);
  while (f.rows > 1 && shared_of(f) > kOneBlock) f.rows = (f.rows + 1) / 2;
  check(shared_of(f) <= kOneBlock, "rows of ", f.product.inputs, " inputs are too long for a GPU");
  const int64_t most = shared_of(f) <= kTwoBlocks ? kTwoBlocks : kOneBlock;
  while (f.stages < kMostPieceStages) {
    ++f.stages;
    if (shared_of(f) > most) {
      --f.stages;
      return;
    }
  }
}

template <PackedMatrix::Join kJoin>
void launch_fp8(const Fp8Product& f, cudaStream_t stream) {
  const int32_t blocks_at_once = multiprocessors() * (shared_of(f) <= kTwoBlocks ? 2 : 1);
  const auto blocks = static_cast<uint32_t>(std::min(f.strip_count, blocks_at_once));
  const auto groups = static_cast<uint32_t>((f.product.room + f.rows - 1) / f.rows);
  allow_shared(fp8_kernel<kJoin>, shared_of(f), "matmul");
  launch_after(fp8_kernel<kJoin>, dim3(blocks, groups), kFp8Threads, static_cast<size_t>(shared_of(f)), stream,
               "matmul", f);
}

// --- many rows

constexpr int32_t kWidenThreads = 256;

struct StripsToWiden {
  const std::byte* strips;
  const float* row_scales;
  int32_t strip_count, pieces;
  uint16_t* out;  // [16 strip_count, 128 pieces]
};

// A warp takes a piece.
__global__ void __launch_bounds__(kWidenThreads) widen_strips_kernel(const __grid_constant__ StripsToWiden s) {
  griddep_wait();
  griddep_launch_dependents();
  const int64_t index = (int64_t{blockIdx.x} * kWidenThreads + threadIdx.x) / kWarp;
  const int64_t strip = index / s.pieces, piece = index % s.pieces;
  if (strip >= s.strip_count) return;
  const int32_t lane = threadIdx.x % kWarp;
  const std::byte* from = s.strips + index * kFp8PieceBytes;
  const int64_t row = strip * kRowGroup + lane / 4, inputs = s.pieces * kFp8PieceInputs;
  const auto scales = *reinterpret_cast<const float2*>(from + kFp8PieceWeights);
  const float scale[2] = {scales.x * s.row_scales[row], scales.y * s.row_scales[row + kHalfGroup]};
  const auto scaled = [](uint32_t pair, float by) {
    const float2 numbers = __bfloat1622float2(quire::cuda::bits_as<__nv_bfloat162>(pair));
    return quire::cuda::pair<__nv_bfloat16>(numbers.x * by, numbers.y * by);
  };
#pragma unroll
  for (int32_t quarter = 0; quarter < 4; ++quarter) {
    const uint4 w = *reinterpret_cast<const uint4*>(from + quarter * 512 + lane * 16);
    const uint32_t words[2][2] = {{w.x, w.y}, {w.z, w.w}};
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const WidePairs low = widened(words[half][0]), high = widened(words[half][1]);
      uint16_t* to = s.out + (row + half * kHalfGroup) * inputs + piece * kFp8PieceInputs + quarter * 32 + lane % 4 * 8;
      *reinterpret_cast<uint4*>(to) = {scaled(low.first, scale[half]), scaled(low.second, scale[half]),
                                       scaled(high.first, scale[half]), scaled(high.second, scale[half])};
    }
  }
}

// Columns of the product that a strip has.
int32_t strip_columns(const Product& p) {
  return static_cast<int32_t>(p.join == PackedMatrix::Join::stack ? kRowGroup : kHalfGroup);
}

Product slice_of(const Product& p, const uint16_t* weights, int32_t first, int32_t count) {
  const bool pairs = p.join == PackedMatrix::Join::gate_and_up;
  const int32_t column = first * strip_columns(p), all = pairs ? p.outputs / 2 : p.outputs;
  Product slice = p;
  slice.weights = weights;
  slice.outputs = std::min(count * strip_columns(p), all - column) * (pairs ? 2 : 1);
  slice.out = p.bf16_out ? reinterpret_cast<float*>(reinterpret_cast<uint16_t*>(p.out) + column) : p.out + column;
  if (p.bias) slice.bias = p.bias + column;
  return slice;
}

void multiply_widened(const Fp8Product& f, cudaStream_t stream) {
  const Product& p = f.product;
  const std::span<uint16_t> memory = dequantised_weights(stream);
  const auto at_once = static_cast<int32_t>(std::ssize(memory) / (kRowGroup * p.inputs));
  check(at_once > 0, "rows of ", p.inputs, " inputs are too long for a GPU");
  const bool whole = p.join == PackedMatrix::Join::stack || p.store == Store::silu_mul;
  check((whole && !(p.bias && p.store == Store::silu_mul)) || f.strip_count <= at_once, "a gate and an up of ",
        p.outputs, " outputs with a bias, or that are not multiplied, are too large for a GPU");
  for (int32_t first = 0; first < f.strip_count; first += at_once) {
    const int32_t count = std::min(at_once, f.strip_count - first);
    const int64_t warps = int64_t{count} * f.pieces;
    launch_after(widen_strips_kernel, dim3(static_cast<uint32_t>((warps * kWarp + kWidenThreads - 1) / kWidenThreads)),
                 kWidenThreads, 0, stream, "matmul",
                 StripsToWiden{.strips = f.strips + int64_t{first} * f.pieces * kFp8PieceBytes,
                               .row_scales = f.row_scales + first * kRowGroup,
                               .strip_count = count,
                               .pieces = f.pieces,
                               .out = memory.data()});
    multiply_by_library(slice_of(p, memory.data(), first, count), stream);
  }
}

}  // namespace

void multiply_fp8(const Product& p, const PackedMatrix& weights, bool own, cudaStream_t stream) {
  Fp8Product f{.product = p,
               .strips = weights.strips(),
               .row_scales = weights.row_scales(),
               .pieces = static_cast<int32_t>(p.inputs / kFp8PieceInputs),
               .strip_count = static_cast<int32_t>(p.weight_rows() / kRowGroup),
               .rows = 0,
               .stages = 0};
  if (!own) return multiply_widened(f, stream);
  place_rows(f);
  if (p.join == PackedMatrix::Join::stack) return launch_fp8<PackedMatrix::Join::stack>(f, stream);
  launch_fp8<PackedMatrix::Join::gate_and_up>(f, stream);
}

}  // namespace quire::ops::cuda
