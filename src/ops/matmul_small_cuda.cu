// Products with matrices of a few megabytes, where latency is what counts: a block has 16 outputs, its warps share the
// inputs, and the first weights of every warp are on their way to registers before the kernel waits for its rows.
//
// Inputs come in chunks of 64, of which warp w takes w, w + warps, ... ascending; the number of warps follows from the
// number of inputs. The warps' sums are added in their order. So a row's bits depend on the weights' shape alone.
//
// Fragments come straight from memory, 16 bytes a lane: the order of inputs inside a chunk is ours to choose as long as
// weights and rows agree, so a lane's 8 neighbours serve as its share of two steps of 16.
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;

constexpr int32_t kMostWarps = 16, kChunk = 64, kHalfChunk = kChunk / 2;
constexpr int32_t kTileRows = 8;  // tokens of an mma
constexpr int32_t kAhead = 2;     // chunks of weights that a warp holds

struct Chunk {
  uint4 half[2][2];  // [inputs 0 to 31, 32 to 63][weight row, the one 8 below]
};

__device__ uint4 load_weights(const uint16_t* at) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(at));
  return x;
}

// `weights`: of the lane's row at input 0 of the lane's share; `input`: of that share in the chunk.
__device__ void load_chunk(Chunk& chunk, const uint16_t* weights, int32_t input, int32_t inputs) {
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const bool exists = input + h * kHalfChunk < inputs;
    const uint16_t* at = weights + input + h * kHalfChunk;
    chunk.half[h][0] = exists ? load_weights(at) : uint4{};
    chunk.half[h][1] = exists ? load_weights(at + static_cast<int64_t>(kHalfGroup) * inputs) : uint4{};
  }
}

__device__ void multiply(float (&sums)[4], const uint4 (&w)[2], const uint4& x) {
  quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums, {w[0].x, w[1].x, w[0].y, w[1].y}, x.x, x.y);
  quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums, {w[0].z, w[1].z, w[0].w, w[1].w}, x.z, x.w);
}

// grid: groups of 16 weight rows, groups of kTiles * 8 tokens
template <int32_t kTiles>
__global__ void __launch_bounds__(kMostWarps * 32) small_kernel(const __grid_constant__ Product p) {
  __shared__ float shared[kMostWarps][kTiles][4][32];
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int32_t row = blockIdx.x * static_cast<int32_t>(kRowGroup) + lane / 4, share = lane % 4 * 8;
  const uint16_t* weights = p.weights + static_cast<int64_t>(row) * p.inputs;
  const int32_t step = warps * kChunk;
  int32_t input = warp * kChunk + share;
  Chunk chunks[kAhead];
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], weights, input + i * step, p.inputs);
  griddep_wait();
  griddep_launch_dependents();

  const int32_t first_token = blockIdx.y * kTiles * kTileRows, live = live_rows_of(p);
  if (first_token >= live) return;
  float sums[kTiles][4] = {};
  while (input - share < p.inputs) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i, input += step) {
      const Chunk chunk = chunks[i];
      load_chunk(chunks[i], weights, input + kAhead * step, p.inputs);
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) {
        const int32_t token = first_token + t * kTileRows + lane / 4;
        const uint16_t* x = p.in + static_cast<int64_t>(token) * p.inputs + input;
#pragma unroll
        for (int32_t h = 0; h < 2; ++h) {
          const bool exists = token < live && input + h * kHalfChunk < p.inputs;
          multiply(sums[t], chunk.half[h],
                   exists ? __ldcg(reinterpret_cast<const uint4*>(x + h * kHalfChunk)) : uint4{});
        }
      }
    }
  }

#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) shared[warp][t][i][lane] = sums[t][i];
  __syncthreads();
  for (int32_t item = threadIdx.x; item < kTiles * 64; item += blockDim.x) {
    const int32_t from = item % 32, odd = item / 32 % 2, t = item / 64;
    const int32_t token = first_token + t * kTileRows + from % 4 * 2 + odd;
    if (token >= live) continue;
    float low = shared[0][t][odd][from], high = shared[0][t][odd + 2][from];
    for (int32_t w = 1; w < warps; ++w) {
      low += shared[w][t][odd][from];
      high += shared[w][t][odd + 2][from];
    }
    finish(p, blockIdx.x * static_cast<int32_t>(kRowGroup) + from / 4, token, low, high);
  }
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// As many as leave none idle in the last round.
constexpr int32_t warps_for(int32_t inputs) {
  const int32_t chunks = parts_of(inputs, kChunk);
  return parts_of(chunks, parts_of(chunks, kMostWarps));
}

template <int32_t kTiles>
void launch(const Product& product, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(product.weight_rows() / kRowGroup),
                  static_cast<uint32_t>(parts_of(product.room, kTiles * kTileRows)));
  quire::cuda::launch_after(small_kernel<kTiles>, grid, warps_for(product.inputs) * 32, 0, stream, "matmul", product);
}

}  // namespace

void multiply_small(const Product& product, cudaStream_t stream) {
  if (product.room <= kTileRows) return launch<1>(product, stream);
  if (product.room <= 2 * kTileRows) return launch<2>(product, stream);
  launch<4>(product, stream);
}

}  // namespace quire::ops::cuda
