// Products with matrices of a few megabytes, where latency is what counts: a block has 16 outputs, its warps share the
// inputs, and the first weights of every warp are on their way to registers before the kernel waits for its rows.
//
// Inputs come in chunks of 64, of which warp w takes w, w + warps, ... ascending; the number of warps follows from the
// number of inputs. The warps' sums are added in their order. So a row's bits depend on the weights' shape alone.
//
// Fragments come straight from memory, 16 bytes a lane: the order of inputs inside a chunk is ours to choose as long as
// weights and rows agree, so a lane's 8 neighbours serve as its share of two steps of 16.
#include <algorithm>

#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;

constexpr int32_t kMostWarps = 16, kChunk = 64, kHalfChunk = kChunk / 2;
constexpr int32_t kTileRows = 8;   // tokens of an mma
constexpr int32_t kMostTiles = 4;  // of a block

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

// Of each chunk the lane's shares of its tokens' rows, `x`; null: no such token.
template <int32_t kTiles, int32_t kAhead>
__device__ void load_rows(uint4 (&rows)[kAhead][kTiles][2], const uint16_t* (&x)[kTiles], int32_t input, int32_t step,
                          int32_t inputs) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        const int32_t at = input + i * step + h * kHalfChunk;
        rows[i][t][h] = x[t] && at < inputs ? __ldcg(reinterpret_cast<const uint4*>(x[t] + at)) : uint4{};
      }
}

template <int32_t kTiles, int32_t kAhead>
__device__ void multiply_chunks(float (&sums)[kTiles][4], const Chunk (&chunks)[kAhead],
                                const uint4 (&rows)[kAhead][kTiles][2]) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t h = 0; h < 2; ++h)
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) multiply(sums[t], chunks[i].half[h], rows[i][t][h]);
}

// grid: groups of 16 weight rows, groups of kTiles * 8 tokens. A warp holds kAhead chunks of weights at a time.
template <int32_t kTiles, int32_t kAhead, bool kAll, PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kMostWarps * 32) small_kernel(const __grid_constant__ Product p) {
  __shared__ float shared[kMostWarps][kTiles][4][32];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int32_t row = blockIdx.x * static_cast<int32_t>(kRowGroup) + lane / 4;
  const uint16_t* upper = p.weights + static_cast<int64_t>(row) * p.inputs;
  const uint16_t* lower = upper + kHalfGroup * p.inputs;
  const int32_t step = warps * kChunk;
  int32_t input = warp * kChunk + lane % 4 * 8;
  Chunk chunks[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
  griddep_wait();
  griddep_launch_dependents();

  const int32_t first_token = blockIdx.y * kTiles * kTileRows, live = live_rows_of(p);
  if constexpr (kTiles ==
                kMostTiles) {  // else there is one group of tokens, and nothing but its stores waits for `live`
    if (first_token >= live) return;
  }
  const uint16_t* x[kTiles];
#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
    const int32_t token = first_token + t * kTileRows + lane / 4;
    x[t] = token < p.room ? p.in + static_cast<int64_t>(token) * p.inputs : nullptr;
  }
  uint4 rows[kAhead][kTiles][2];
  load_rows(rows, x, input, step, p.inputs);
  // What this thread adds up and stores in the end: rows i and i + 8 of this lane's place for one of its tokens.
  const int32_t odd = warp % 2, tile = warp / 2, token = first_token + tile * kTileRows + lane % 4 * 2 + odd;
  const bool finishes = tile < kTiles;
  const Finish<kJoin> finish(p, row, finishes ? token : p.room);
  float sums[kTiles][4] = {};
  multiply_chunks(sums, chunks, rows);
  if constexpr (!kAll) {
    while ((input += kAhead * step) - lane % 4 * 8 < p.inputs) {
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
      load_rows(rows, x, input, step, p.inputs);
      multiply_chunks(sums, chunks, rows);
    }
  }

#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) shared[warp][t][i][lane] = sums[t][i];
  __syncthreads();
  if (!finishes || token >= live) return;
  float low = 0, high = 0;
#pragma unroll 4
  for (int32_t w = 0; w < warps; ++w) {
    low += shared[w][tile][odd][lane];
    high += shared[w][tile][odd + 2][lane];
  }
  finish.store(p, low, high);
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// As many as leave none idle in the last round.
constexpr int32_t rounds_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), kMostWarps); }
constexpr int32_t warps_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), rounds_for(inputs)); }

template <int32_t kTiles, PackedMatrix::Join kJoin>
void launch_small(const Product& product, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(product.weight_rows() / kRowGroup),
                  static_cast<uint32_t>(parts_of(product.room, kTiles * kTileRows)));
  const int32_t rounds = rounds_for(product.inputs);
  const auto kernel = rounds == 1   ? small_kernel<kTiles, 1, true, kJoin>
                      : rounds == 2 ? small_kernel<kTiles, 2, true, kJoin>
                                    : small_kernel<kTiles, 2, false, kJoin>;
  const int32_t warps = std::max(warps_for(product.inputs), 2 * kTiles);  // the sums of those without inputs are zeros
  quire::cuda::launch_after(kernel, grid, warps * 32, 0, stream, "matmul", product);
}

template <int32_t kTiles>
void launch_joined(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_small<kTiles, PackedMatrix::Join::stack>(p, stream);
  launch_small<kTiles, PackedMatrix::Join::gate_and_up>(p, stream);
}

}  // namespace

void multiply_small(const Product& p, cudaStream_t stream) {
  if (p.room <= kTileRows) return launch_joined<1>(p, stream);
  if (p.room <= 2 * kTileRows) return launch_joined<2>(p, stream);
  launch_joined<kMostTiles>(p, stream);
}

}  // namespace quire::ops::cuda
