// Products of up to 8 rows with large matrices on Hopper, where reading the weights is what takes the time: weights
// stream through a ring of shared memory, which is full before the kernel waits for its rows.
//
//   a tile    16 weight rows. Every block has as many as any other, if possible, so that all end at once
//   a piece   a stage of the ring, up to 32 KB. Of rows of up to 4096 inputs 4, 8 or 16, which lie side by side and
//   come
//             by one copy: copies cost 40 ns each, and memory gives a tenth more to stretches than to boxes of a tensor
//             map. Of longer rows 1024 inputs of all 16, two boxes: stretches of them would be too short
//   a warp    has every eighth block of 64 inputs, and in registers what it needs of the tokens' rows
//
// Products are m16n8k16 over four weight rows: tokens are its rows, with a block's first 32 inputs, and again eight
// below with its last 32; its columns are a weight row's first 32 inputs and its last 32 in turn. So of a product's
// sums half mean something, and a lane has one output of one token.
//
// A warp adds up a piece's inputs ascending, in two sums which eights of inputs go to by halves, then the two halves of
// blocks, then pieces; the warps' sums are added in their order. So a row's bits depend on nothing but the row and the
// weights.
#include <algorithm>

#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_end_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::griddep_launch_dependents;
using quire::cuda::griddep_wait;
using quire::cuda::shared_address;

constexpr int32_t kStreamWarps = 8, kStreamThreads = kStreamWarps * 32;
constexpr int32_t kTileHeight = static_cast<int32_t>(kRowGroup), kHalfTile = kTileHeight / 2;
constexpr int32_t kQuad = 4, kQuads = kTileHeight / kQuad;  // weight rows of a product, such of a tile
constexpr int32_t kBlock = 64, kLongestRow = 4096, kBoxInputs = 1024;
constexpr int32_t kBoxBlocks = kBoxInputs / kBlock;
constexpr int32_t kRingBytes = 128 << 10, kMostStageBytes = 32 << 10, kMostStages = 12;
constexpr int32_t kHeldTiles = 2;  // whose sums meet at a time

struct StreamProduct {
  CUtensorMap boxes;  // of pieces that are not whole rows
  Product product;
  int32_t tiles, turns;   // of all blocks, of a block
  int32_t pieces, piece;  // of a row; inputs of one
  int32_t quads, stages;  // of a stage; of the ring

  __device__ int32_t first_tile() const { return static_cast<int32_t>(blockIdx.x) * turns; }
  __device__ int32_t own_tiles() const { return min(turns, tiles - first_tile()); }
  __device__ int32_t own_stages() const { return own_tiles() * pieces * (kQuads / quads); }
  __device__ int32_t stage_bytes() const { return quads * kQuad * piece * 2; }
};

// A block's stages in the order in which they pass: for each kHeldTiles tiles, for each piece of a row, by rows.
struct StageCursor {
  int32_t first, piece;  // tile and piece where both loops are
  int32_t quad;          // from there on, over the tiles
  int32_t left;

  __device__ void next(const StreamProduct& s) {
    --left;
    if ((quad += s.quads) < min(kHeldTiles, s.own_tiles() - first) * kQuads) return;
    quad = 0;
    if (++piece < s.pieces) return;
    piece = 0;
    first += kHeldTiles;
  }
};

struct StreamShared {
  alignas(128) std::byte ring[kRingBytes];
  float sums[kHeldTiles * kQuads][kStreamWarps][32];
  float factors[kMostStreamRows];
  Barrier full[kMostStages], empty[kMostStages];
};

// Blocks of 64 inputs that a warp has of a piece.
template <bool kBoxes>
constexpr int32_t kBlocksOfWarp = (kBoxes ? kBoxInputs : kLongestRow) / kBlock / kStreamWarps;

// By one thread: the cursor's rows come to the stage.
template <class End, bool kBoxes>
__device__ void load_stage(const StreamProduct& s, StreamShared& shared, int32_t stage, const StageCursor& at) {
  const Product& p = s.product;
  const RowPair tile = End(p, s.first_tile() + at.first + at.quad / kQuads).rows(0);
  uint32_t to = shared_address(shared.ring) + stage * s.stage_bytes();
  arrive_expect_tx(&shared.full[stage], s.stage_bytes());
  if constexpr (kBoxes) {
    tma_load_once(to, &s.boxes, &shared.full[stage], 0, at.piece * kBoxBlocks, tile.low);
    tma_load_once(to + s.stage_bytes() / 2, &s.boxes, &shared.full[stage], 0, at.piece * kBoxBlocks, tile.high);
    return;
  }
  const int32_t rows = s.quads * kQuad, first = at.quad % kQuads * kQuad, together = min(rows, kHalfTile);
#pragma unroll 1
  for (int32_t row = first; row < first + rows; row += together, to += together * p.inputs * 2) {
    const int32_t of_matrix = row < kHalfTile ? tile.low + row : tile.high + row - kHalfTile;
    bulk_load_once(to, p.weights + static_cast<int64_t>(of_matrix) * p.inputs, together * p.inputs * 2,
                   &shared.full[stage]);
  }
}

// The tokens' rows of a piece: lane / 4 is the token, lane % 4 has 8 inputs of each half of the warp's blocks.
template <bool kBoxes>
using HeldRows = uint4[kBlocksOfWarp<kBoxes>][2];

template <bool kBoxes>
__device__ void load_rows(HeldRows<kBoxes>& rows, const StreamProduct& s, int32_t piece) {
  const Product& p = s.product;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = lane / 4;
#pragma unroll
  for (int32_t i = 0; i < kBlocksOfWarp<kBoxes>; ++i)
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const int32_t at = piece * s.piece + (warp + kStreamWarps * i) * kBlock + h * (kBlock / 2) + lane % 4 * 8;
      const auto* x = reinterpret_cast<const uint4*>(p.in + token * p.in_stride + at);
      rows[i][h] = token < p.room && at < p.inputs ? __ldcg(x) : uint4{};
    }
}

__device__ uint4 load_shared(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}

// The warp's share of four weight rows' sums for the lane's token and row lane % 4. A row has so many inputs there, and
// the next begins `stride` bytes further on.
template <bool kBoxes>
__device__ float multiply_quad(uint32_t weights, int32_t stride, int32_t inputs, const HeldRows<kBoxes>& rows) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t at = weights + lane / 8 * stride + warp * (kBlock * 2) + lane % 8 * 16;
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int32_t i = 0; i < kBlocksOfWarp<kBoxes>; ++i) {
    if ((warp + kStreamWarps * i) * kBlock >= inputs) break;
    const uint4 w = load_shared(at + i * kStreamWarps * kBlock * 2);
    const uint4 &x = rows[i][0], &y = rows[i][1];
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(even, {x.x, y.x, x.y, y.y}, w.x, w.y);
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(odd, {x.z, y.z, x.w, y.w}, w.z, w.w);
  }
  return (even[0] + odd[0]) + (even[3] + odd[3]);
}

// grid: blocks that share the tiles
template <class End, bool kBoxes>
__global__ void __launch_bounds__(kStreamThreads, 1) stream_kernel(const __grid_constant__ StreamProduct s) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<StreamShared*>(memory);
  const Product& p = s.product;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = s.own_tiles();
  StageCursor ahead{.first = 0, .piece = 0, .quad = 0, .left = s.own_stages()};  // what the first thread asks for next
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < s.stages; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kStreamWarps);
    }
    fence_proxy_async();
#pragma unroll 1
    for (int32_t i = 0; i < s.stages && ahead.left > 0; ++i, ahead.next(s))
      load_stage<End, kBoxes>(s, shared, i, ahead);
  }
  __syncthreads();
  griddep_wait();
  griddep_launch_dependents();

  const int32_t live = live_rows_of(p);
  constexpr int32_t kGroupsAhead = 8;  // rows of 4096
  const RowFactor<kGroupsAhead> own_factor(p, warp);
  PipelineState place;
  HeldRows<kBoxes> rows;
  for (int32_t first = 0; first < tiles; first += kHeldTiles) {
    // What this thread adds up and stores: one of the tile's pairs for one of the tokens.
    const int32_t odd = warp % 2, t = warp / 2, pair = lane / 4, token = lane % 4 * 2 + odd;
    const bool finishes = t < kHeldTiles && first + t < tiles;
    End end(p, finishes ? s.first_tile() + first + t : 0);
    end.load(p, finishes ? token : p.room);
    for (int32_t piece = 0; piece < s.pieces; ++piece) {
      if (first == 0 || s.pieces > 1) load_rows<kBoxes>(rows, s, piece);
      const int32_t inputs = min(s.piece, p.inputs - piece * s.piece), quads = min(kHeldTiles, tiles - first) * kQuads;
#pragma unroll 1
      for (int32_t quad = 0; quad < quads; quad += s.quads) {
        wait(&shared.full[place.stage], place.phase);
        const uint32_t stage = shared_address(shared.ring) + place.stage * s.stage_bytes();
#pragma unroll 1
        for (int32_t i = 0; i < s.quads; ++i) {
          const float part = multiply_quad<kBoxes>(stage + i * kQuad * s.piece * 2, s.piece * 2, inputs, rows);
          float& sum = shared.sums[quad + i][warp][lane];
          sum = piece == 0 ? part : sum + part;
        }
        __syncwarp();
        if (lane == 0) arrive(&shared.empty[place.stage]);
        if (threadIdx.x == 0 && ahead.left > 0) {
          wait(&shared.empty[place.stage], place.phase);
          load_stage<End, kBoxes>(s, shared, place.stage, ahead);
          ahead.next(s);
        }
        place.next(s.stages);
      }
    }
    if (first == 0 && p.squares) {
      const float factor = own_factor.value(p);
      if (lane == 0) shared.factors[warp] = factor;
    }
    __syncthreads();
    float low = 0, high = 0;
    if (finishes) {
      const int32_t from = token * kQuad + pair % kQuad, at = t * kQuads + pair / kQuad;
#pragma unroll
      for (int32_t w = 0; w < kStreamWarps; ++w) {
        low += shared.sums[at][w][from];
        high += shared.sums[at + kQuads / 2][w][from];
      }
    }
    __syncthreads();  // the sums are read
    if (!finishes) continue;
    const float factor = p.squares ? shared.factors[token] : 1;
    end.store(p, low * factor, high * factor, token < live);
  }
}

// --- the host's side

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

template <class End, bool kBoxes>
void launch_stream(const Product& p, cudaStream_t stream) {
  static const int32_t blocks_at_once = [] {
    check_cuda(cudaFuncSetAttribute(stream_kernel<End, kBoxes>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(sizeof(StreamShared))),
               "no shared memory for products");
    return multiprocessors();
  }();
  const int32_t tiles = p.weight_rows() / kTileHeight, turns = parts_of(tiles, blocks_at_once);
  const int32_t piece = kBoxes ? kBoxInputs : p.inputs;
  int32_t quads = kQuads;
  while (quads * kQuad * piece * 2 > kMostStageBytes) quads /= 2;
  StreamProduct s{.boxes = {},
                  .product = p,
                  .tiles = tiles,
                  .turns = turns,
                  .pieces = parts_of(p.inputs, piece),
                  .piece = piece,
                  .quads = quads,
                  .stages = std::min(kMostStages, kRingBytes / (quads * kQuad * piece * 2))};
  if (kBoxes) s.boxes = rows_map(p.weights, p.weight_rows(), p.inputs, kHalfTile, kBoxBlocks);
  quire::cuda::launch_after(stream_kernel<End, kBoxes>, dim3(static_cast<uint32_t>(parts_of(tiles, turns))),
                            kStreamThreads, sizeof(StreamShared), stream, "matmul", s);
}

template <class End>
void launch_by_length(const Product& p, cudaStream_t stream) {
  (p.inputs > kLongestRow ? launch_stream<End, true> : launch_stream<End, false>)(p, stream);
}

}  // namespace

void multiply_stream(const Product& p, cudaStream_t stream) {
  if (p.has_heads) return launch_by_length<HeadsEnd>(p, stream);
  if (p.join == PackedMatrix::Join::stack) return launch_by_length<RowsEnd<PackedMatrix::Join::stack>>(p, stream);
  launch_by_length<RowsEnd<PackedMatrix::Join::gate_and_up>>(p, stream);
}

}  // namespace quire::ops::cuda
