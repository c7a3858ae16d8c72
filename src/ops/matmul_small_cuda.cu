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

// Calls each(i, t, h, token, at, exists) for the lane's pieces of the rows: chunk i of those ahead, tile t of tokens,
// half h of the chunk, which begins at input `at` of the token.
template <int32_t kTiles, int32_t kAhead, class Each>
__device__ void for_each_piece(const Product& p, int32_t first_token, int32_t input, int32_t step, const Each& each) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t t = 0; t < kTiles; ++t)
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        const int32_t at = input + i * step + h * kHalfChunk;
        const int32_t token = first_token + t * kTileRows + static_cast<int32_t>(threadIdx.x) % 32 / 4;
        each(i, t, h, token, at, token < p.room && at < p.inputs);
      }
}

// Of bf16, as they are.
template <int32_t kTiles, int32_t kAhead>
class PlainRows {
 public:
  static constexpr bool kNormed = false;
  __device__ void load_norm(const Product&, int32_t, int32_t) {}
  __device__ void load(const Product& p, int32_t first_token, int32_t input, int32_t step) {
    for_each_piece<kTiles, kAhead>(p, first_token, input, step,
                                   [&](int32_t i, int32_t t, int32_t h, int32_t token, int32_t at, bool exists) {
                                     const uint16_t* x = p.in + token * p.in_stride + at;
                                     rows_[i][t][h] = exists ? __ldcg(reinterpret_cast<const uint4*>(x)) : uint4{};
                                   });
  }
  __device__ uint4 row(int32_t i, int32_t t, int32_t h) const { return rows_[i][t][h]; }

 private:
  uint4 rows_[kAhead][kTiles][2];
};

// Of f32, times the norm's weights; sums of squares are kept. Every block norms its rows itself, which pays for few.
template <int32_t kTiles, int32_t kAhead>
class NormedRows {
 public:
  static constexpr bool kNormed = true;
  __device__ void load_norm(const Product& p, int32_t input, int32_t step) {
#pragma unroll
    for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
      for (int32_t h = 0; h < 2; ++h)
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          const int32_t at = input + i * step + h * kHalfChunk;
          norm_[i][h][j] = load_weights(reinterpret_cast<const uint16_t*>(p.norm + at + j * 4), at < p.inputs);
        }
  }
  __device__ void load(const Product& p, int32_t first_token, int32_t input, int32_t step) {
    for_each_piece<kTiles, kAhead>(
        p, first_token, input, step, [&](int32_t i, int32_t t, int32_t h, int32_t token, int32_t at, bool exists) {
          const auto* x = reinterpret_cast<const float4*>(p.norm_in + static_cast<int64_t>(token) * p.inputs + at);
#pragma unroll
          for (int32_t j = 0; j < 2; ++j) rows_[i][t][h][j] = exists ? __ldcg(x + j) : float4{};
        });
  }
  __device__ uint4 row(int32_t i, int32_t t, int32_t h) {
    const float4 first = times_norm(rows_[i][t][h][0], norm_[i][h][0], squares[t]);
    const float4 second = times_norm(rows_[i][t][h][1], norm_[i][h][1], squares[t]);
    using quire::cuda::pair;
    return {pair<__nv_bfloat16>(first.x, first.y), pair<__nv_bfloat16>(first.z, first.w),
            pair<__nv_bfloat16>(second.x, second.y), pair<__nv_bfloat16>(second.z, second.w)};
  }

  float squares[kTiles] = {};  // of the lane's share

 private:
  static __device__ float4 times_norm(const float4& x, const uint4& weights, float& sum) {
    const auto w = quire::cuda::bits_as<float4>(weights);
    sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum))));
    return {x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w};
  }

  uint4 norm_[kAhead][2][2];
  float4 rows_[kAhead][kTiles][2][2];
};

// --- the kernel

template <int32_t kTiles, int32_t kAhead, class Rows>
__device__ void multiply_chunks(float (&sums)[kTiles][4], const Chunk (&chunks)[kAhead], Rows& rows) {
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i)
#pragma unroll
    for (int32_t h = 0; h < 2; ++h)
#pragma unroll
      for (int32_t t = 0; t < kTiles; ++t) multiply(sums[t], chunks[i].half[h], rows.row(i, t, h));
}

template <int32_t kTiles>
struct Shared {
  float sums[kMostWarps][kTiles][4][32];
  float squares[kMostWarps][kTiles][kTileRows];
};

// grid: groups of 16 weight rows, groups of kTiles * 8 tokens. A warp holds kAhead chunks of weights at a time, which
// are all that it has or not. kOneGroup: there is one group of tokens, and nothing but its stores waits for `live`.
template <class Rows, int32_t kTiles, int32_t kAhead, bool kAll, bool kOneGroup, PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kMostWarps * 32) small_kernel(const __grid_constant__ Product p) {
  __shared__ Shared<kTiles> shared;
  griddep_launch_dependents();  // two of these fit beside each other
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int32_t row = blockIdx.x * static_cast<int32_t>(kRowGroup) + lane / 4;
  const uint16_t* upper = p.weights + static_cast<int64_t>(row) * p.inputs;
  const uint16_t* lower = upper + kHalfGroup * p.inputs;
  const int32_t step = warps * kChunk;
  int32_t input = warp * kChunk + lane % 4 * 8;
  Chunk chunks[kAhead];
  Rows rows;
#pragma unroll
  for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
  rows.load_norm(p, input, step);
  griddep_wait();

  const int32_t first_token = blockIdx.y * kTiles * kTileRows, live = live_rows_of(p);
  if constexpr (!kOneGroup) {
    if (first_token >= live) return;
  }
  rows.load(p, first_token, input, step);
  // What this thread adds up and stores in the end: rows i and i + 8 of this lane's place for one of its tokens.
  const int32_t odd = warp % 2, tile = warp / 2, place = lane % 4 * 2 + odd;
  const int32_t token = first_token + tile * kTileRows + place;
  const bool finishes = tile < kTiles;
  const Finish<kJoin> finish(p, row, finishes ? token : p.room);
  float sums[kTiles][4] = {};
  multiply_chunks(sums, chunks, rows);
  if constexpr (!kAll) {
    while ((input += kAhead * step) - lane % 4 * 8 < p.inputs) {
#pragma unroll
      for (int32_t i = 0; i < kAhead; ++i) load_chunk(chunks[i], upper, lower, input + i * step, p.inputs);
      rows.load_norm(p, input, step);
      rows.load(p, first_token, input, step);
      multiply_chunks(sums, chunks, rows);
    }
  }

#pragma unroll
  for (int32_t t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) shared.sums[warp][t][i][lane] = sums[t][i];
    if constexpr (Rows::kNormed) {
      const float squares = quire::cuda::quad_sum(rows.squares[t]);
      if (lane % 4 == 0) shared.squares[warp][t][lane / 4] = squares;
    }
  }
  __syncthreads();
  if (!finishes || token >= live) return;
  float low = 0, high = 0, squares = 0;
#pragma unroll 4
  for (int32_t w = 0; w < warps; ++w) {
    low += shared.sums[w][tile][odd][lane];
    high += shared.sums[w][tile][odd + 2][lane];
    if constexpr (Rows::kNormed) squares += shared.squares[w][tile][place];
  }
  const float factor = Rows::kNormed ? rsqrtf(__fdividef(squares, static_cast<float>(p.inputs)) + p.norm_eps) : 1;
  finish.store(p, low * factor, high * factor);
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// As many as leave none idle in the last round.
constexpr int32_t rounds_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), kMostWarps); }
constexpr int32_t warps_for(int32_t inputs) { return parts_of(parts_of(inputs, kChunk), rounds_for(inputs)); }

template <template <int32_t, int32_t> class Rows, int32_t kTiles, bool kOneGroup, PackedMatrix::Join kJoin>
void launch_small(const Product& p, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(p.weight_rows() / kRowGroup),
                  static_cast<uint32_t>(parts_of(p.room, kTiles * kTileRows)));
  const int32_t rounds = rounds_for(p.inputs);
  const auto kernel = rounds == 1   ? small_kernel<Rows<kTiles, 1>, kTiles, 1, true, kOneGroup, kJoin>
                      : rounds == 2 ? small_kernel<Rows<kTiles, 2>, kTiles, 2, true, kOneGroup, kJoin>
                                    : small_kernel<Rows<kTiles, 2>, kTiles, 2, false, kOneGroup, kJoin>;
  const int32_t warps = std::max(warps_for(p.inputs), 2 * kTiles);  // the sums of those without inputs are zeros
  quire::cuda::launch_after(kernel, grid, warps * 32, 0, stream, "matmul", p);
}

template <PackedMatrix::Join kJoin>
void launch_joined(const Product& p, cudaStream_t stream) {
  if (p.norm) return launch_small<NormedRows, 1, true, kJoin>(p, stream);  // two groups do not need to stop early
  if (p.room <= kTileRows) return launch_small<PlainRows, 1, true, kJoin>(p, stream);
  if (p.room <= 2 * kTileRows) return launch_small<PlainRows, 2, true, kJoin>(p, stream);
  launch_small<PlainRows, 4, false, kJoin>(p, stream);
}

}  // namespace

void multiply_small(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_joined<PackedMatrix::Join::stack>(p, stream);
  launch_joined<PackedMatrix::Join::gate_and_up>(p, stream);
}

}  // namespace quire::ops::cuda
