// Products with matrices of a few megabytes, where latency is what counts: a block has 16 outputs, its warps share the
// inputs, and the first weights of every warp are on their way to registers before the kernel waits for its rows.
//
// Inputs come in chunks of 64, of which warp w takes w, w + warps, ... ascending; the number of warps follows from the
// number of inputs. The warps' sums are added in their order. So a row's bits depend on the weights' shape alone.
//
// Fragments come straight from memory, 16 bytes a lane: the order of inputs inside a chunk is ours to choose as long as
// weights and rows agree, so a lane's 8 neighbours serve as its share of two steps of 16.
#include <algorithm>
#include <utility>

#include "ops/matmul_end_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;

constexpr int32_t kMostWarps = 12, kChunk = 64, kHalfChunk = kChunk / 2;
constexpr int32_t kTileRows = 8;  // tokens of an mma

struct Chunk {
  uint4 half[2][2];  // [inputs 0 to 31, 32 to 63][weight row, the one 8 below]
};

// 16 bytes, or zeros; a plain load would sink below the wait for the kernel before.
__device__ uint4 load_weights(const uint16_t* at, bool exists) {
  uint4 x;
  asm volatile(
      "{\n.reg .pred exists;\nsetp.ne.s32 exists, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\n"
      "mov.u32 %3, 0;\n@exists ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
      : "l"(at), "r"(static_cast<int32_t>(exists))
      : "memory");
  return x;
}

// The lane's share of the chunk, which begins at `input`.
__device__ void load_chunk(Chunk& chunk, const uint16_t* upper, const uint16_t* lower, int32_t input, int32_t inputs) {
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const bool exists = input + h * kHalfChunk < inputs;
    chunk.half[h][0] = load_weights(upper + input + h * kHalfChunk, exists);
    chunk.half[h][1] = load_weights(lower + input + h * kHalfChunk, exists);
  }
}

__device__ void multiply(float (&sums)[4], const uint4 (&w)[2], const uint4& x) {
  quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums, {w[0].x, w[1].x, w[0].y, w[1].y}, x.x, x.y);
  quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums, {w[0].z, w[1].z, w[0].w, w[1].w}, x.z, x.w);
}

// --- rows

// The lane's pieces: of chunk i of those ahead, tile t of tokens, half h of the chunk.
template <int32_t kTiles, int32_t kAhead>
using RowPieces = uint4[kAhead][kTiles][2];

template <int32_t kTiles, int32_t kAhead>
__device__ void load_rows(RowPieces<kTiles, kAhead>& rows, const Product& p, int32_t first_token, int32_t input,
                          int32_t step) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        const int32_t at = input + i * step + h * kHalfChunk;
        const int32_t token = first_token + t * kTileRows + static_cast<int32_t>(threadIdx.x) % 32 / 4;
        const auto* piece = reinterpret_cast<const uint4*>(p.in + token * p.in_stride + at);
        rows[i][t][h] = token < p.room && at < p.inputs ? __ldcg(piece) : uint4{};
      }
}

// --- the kernel

template <int32_t kTiles, int32_t kAhead>
__device__ void multiply_chunks(float (&sums)[kTiles][4], const Chunk (&chunks)[kAhead],
                                const RowPieces<kTiles, kAhead>& rows) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t h = 0; h < 2; ++h)
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) multiply(sums[t], chunks[i].half[h], rows[i][t][h]);
}

// The factors of a group of tokens: each of eight warps has one of every tile.
template <int32_t kTiles>
class Factors {
 public:
  __device__ Factors(const Product& p, int32_t first_token) : Factors(p, first_token + warp(), Tiles{}) {}
  __device__ void put(const Product& p, float (&to)[kTiles * kTileRows]) const {
    if (warp() >= kTileRows) return;
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t) {
      const float factor = of_tile_[t].value(p);
      if (threadIdx.x % 32 == 0) to[t * kTileRows + warp()] = factor;
    }
  }

 private:
  using Tiles = std::make_integer_sequence<int32_t, kTiles>;
  template <int32_t... kTile>
  __device__ Factors(const Product& p, int32_t token, std::integer_sequence<int32_t, kTile...>)
      : of_tile_{{p, token + kTile * kTileRows}...} {}
  static __device__ int32_t warp() { return static_cast<int32_t>(threadIdx.x) / 32; }
  static constexpr int32_t kGroupsAhead = 2;  // rows of 1024
  RowFactor<kGroupsAhead> of_tile_[kTiles];
};

template <int32_t kTiles>
struct Shared {
  float sums[kMostWarps][kTiles][4][32];
  float factors[kTiles * kTileRows];
};

// So few registers that two blocks leave room for one of attention, whose clusters would else begin late.
template <int32_t kTiles, int32_t kAhead>
constexpr int32_t kBlocksBeside = kTiles > 1 ? 1 : kAhead == 1 ? 3 : 2;

// grid: groups of 16 weight rows, groups of kTiles * 8 tokens. A warp holds kAhead chunks of weights at a time, which
// are all that it has or not. kOneGroup: there is one group of tokens, and nothing but its stores waits for `live`.
template <int32_t kTiles, int32_t kAhead, bool kAll, bool kOneGroup, class End>
__global__ void __launch_bounds__(kMostWarps * 32, kBlocksBeside<kTiles, kAhead>) small_kernel(const __grid_constant__ Product p) {
  __shared__ Shared<kTiles> shared;
  griddep_launch_dependents();  // two of these fit beside each other
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  End end(p, blockIdx.x);
  const RowPair own = end.rows(lane / 4);
  const uint16_t* upper = p.weights + static_cast<int64_t>(own.low) * p.inputs;
  const uint16_t* lower = p.weights + static_cast<int64_t>(own.high) * p.inputs;
  const int32_t step = warps * kChunk;
  int32_t input = warp * kChunk + lane % 4 * 8;
  Chunk chunks[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
  griddep_wait();

  const int32_t first_token = blockIdx.y * kTiles * kTileRows, live = live_rows_of(p);
  if constexpr (!kOneGroup) {
    if (first_token >= live) return;
  }
  RowPieces<kTiles, kAhead> rows;
  load_rows<kTiles, kAhead>(rows, p, first_token, input, step);
  Factors<kTiles> factors(p, first_token);
  // What this thread adds up and stores in the end: one of the tile's pairs for one of its tokens.
  const int32_t odd = warp % 2, tile = warp / 2, place = lane % 4 * 2 + odd;
  const int32_t token = first_token + tile * kTileRows + place;
  const bool finishes = tile < kTiles;
  end.load(p, finishes ? token : p.room);
  float sums[kTiles][4] = {};
  multiply_chunks(sums, chunks, rows);
  if constexpr (!kAll) {
    while ((input += kAhead * step) - lane % 4 * 8 < p.inputs) {
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
      load_rows<kTiles, kAhead>(rows, p, first_token, input, step);
      multiply_chunks(sums, chunks, rows);
    }
  }

#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) shared.sums[warp][t][i][lane] = sums[t][i];
  if (p.squares) factors.put(p, shared.factors);
  __syncthreads();
  if (!finishes) return;
  float low = 0, high = 0;
#pragma unroll 4
  for (int32_t w = 0; w < warps; ++w) {
    low += shared.sums[w][tile][odd][lane];
    high += shared.sums[w][tile][odd + 2][lane];
  }
  const float factor = p.squares ? shared.factors[tile * kTileRows + place] : 1;
  end.store(p, low * factor, high * factor, token < live);
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// As many as leave none idle in the last round.
constexpr int32_t rounds_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), kMostWarps); }
constexpr int32_t warps_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), rounds_for(inputs)); }

template <int32_t kTiles, bool kOneGroup, class End>
void launch_small(const Product& p, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(p.weight_rows() / kRowGroup),
                  static_cast<uint32_t>(parts_of(p.room, kTiles * kTileRows)));
  const int32_t rounds = rounds_for(p.inputs);
  const auto kernel = rounds == 1   ? small_kernel<kTiles, 1, true, kOneGroup, End>
                      : rounds == 2 ? small_kernel<kTiles, 2, true, kOneGroup, End>
                                    : small_kernel<kTiles, 2, false, kOneGroup, End>;
  const int32_t warps = std::max(warps_for(p.inputs), kTileRows);  // the sums of those without inputs are zeros
  quire::cuda::launch_after(kernel, grid, warps * 32, 0, stream, "matmul", p);
}

template <class End>
void launch_by_rows(const Product& p, cudaStream_t stream) {
  if (p.room <= kTileRows) return launch_small<1, true, End>(p, stream);
  if (p.room <= 2 * kTileRows) return launch_small<2, true, End>(p, stream);
  launch_small<4, false, End>(p, stream);
}

}  // namespace

void multiply_small(const Product& p, cudaStream_t stream) {
  if (p.has_heads) return launch_by_rows<HeadsEnd>(p, stream);
  if (p.join == PackedMatrix::Join::stack) return launch_by_rows<RowsEnd<PackedMatrix::Join::stack>>(p, stream);
  launch_by_rows<RowsEnd<PackedMatrix::Join::gate_and_up>>(p, stream);
}

}  // namespace quire::ops::cuda
