// Products of up to 8 rows with large matrices on Hopper, where reading the weights is what takes the time: weights
// stream through a ring of shared memory, which is full before the kernel waits for its rows.
//
//   a tile    16 weight rows. Every block has as many as any other, if possible, so that all end at once
//   a piece   up to 1024 inputs of a tile, a stage of the ring: two boxes of 8 rows by TMA. A copy for each row would
//             cost 40 ns each, 4 us until the ring is full
//   a warp    has every eighth group of 32 inputs, and in registers what it needs of the tokens' rows; products are
//             m16n8k16, weights as rows, tokens as columns
//
// A warp adds up its inputs ascending, in two sums, which a lane's 8 neighbouring inputs go to in turn; the warps' sums
// are added in their order. So a row's bits depend on nothing but the row and the weights.
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
constexpr int32_t kTileHeight = static_cast<int32_t>(kRowGroup);
constexpr int32_t kHalfTile = kTileHeight / 2;
constexpr int32_t kMostPiece = 1024, kMostPanels = kMostPiece / kPanelColumns, kGroup = 32;
constexpr int32_t kGroupsOfWarp = kMostPiece / kGroup / kStreamWarps;
constexpr int32_t kEightLines = kHalfTile * kLineBytes;  // of a panel
constexpr int32_t kBoxBytes = kMostPanels * kEightLines, kStageBytes = 2 * kBoxBytes;
constexpr int32_t kStages = 6;
constexpr int32_t kHeldTiles = 2;   // whose sums a warp has at a time
constexpr int32_t kHeldPieces = 4;  // of the tokens' rows, which a warp has in registers; longer rows come in passes

// A block's pieces in the order in which they pass: for each kHeldTiles tiles, for each kHeldPieces pieces of a row,
// tile by tile.
struct PieceCursor {
  int32_t first, pass;  // tile and piece where both loops are
  int32_t tile, piece;  // from there on
  int32_t left;

  __device__ void next(int32_t tiles, int32_t pieces) {
    --left;
    if (++piece < min(kHeldPieces, pieces - pass)) return;
    piece = 0;
    if (++tile < min(kHeldTiles, tiles - first)) return;
    tile = 0;
    if ((pass += kHeldPieces) < pieces) return;
    pass = 0;
    first += kHeldTiles;
  }
};

struct StreamShared {
  alignas(1024) std::byte ring[kStages][kStageBytes];
  float sums[kHeldTiles][kStreamWarps][4][32];
  float factors[kMostStreamRows];
  Barrier full[kStages], empty[kStages];
};

struct StreamProduct {
  CUtensorMap weights;
  Product product;
  int32_t tiles, turns;    // of all blocks, of a block
  int32_t pieces, panels;  // of a row, of a piece

  __device__ int32_t first_tile() const { return static_cast<int32_t>(blockIdx.x) * turns; }
  __device__ int32_t own_tiles() const { return min(turns, tiles - first_tile()); }
};

// By one thread: the cursor's piece comes to the stage.
template <class End>
__device__ void load_piece(const StreamProduct& s, StreamShared& shared, int32_t stage, const PieceCursor& at) {
  const RowPair rows = End(s.product, s.first_tile() + at.first + at.tile).rows(0);
  const int32_t panel = (at.pass + at.piece) * s.panels;
  const uint32_t to = shared_address(shared.ring[stage]);
  arrive_expect_tx(&shared.full[stage], 2 * s.panels * kEightLines);
  tma_load_once(to, &s.weights, &shared.full[stage], 0, rows.low, panel);
  tma_load_once(to + kBoxBytes, &s.weights, &shared.full[stage], 0, rows.high, panel);
}

// The tokens' rows as B fragments: lane / 4 is the token, lane % 4 has 8 inputs of each of the warp's groups.
using HeldRows = uint4[kHeldPieces][kGroupsOfWarp];

__device__ void load_rows(HeldRows& rows, const Product& p, int32_t piece, int32_t pass) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = lane / 4;
#pragma unroll
  for (int32_t c = 0; c < kHeldPieces; ++c)
#pragma unroll
    for (int32_t i = 0; i < kGroupsOfWarp; ++i) {
      const int32_t at = (pass + c) * piece + (warp + kStreamWarps * i) * kGroup + lane % 4 * 8;
      const auto* x = reinterpret_cast<const uint4*>(p.in + token * p.in_stride + at);
      rows[c][i] = token < p.room && at < p.inputs ? __ldcg(x) : uint4{};
    }
}

__device__ uint4 load_shared(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}

// Lanes of a product's row lane / 4 read the line of this number: so that eight lanes at a time meet no bank twice,
// pieces of line i lie permuted by i. And where such a line's sums are.
__device__ int32_t line_of(int32_t row) { return row % 2 * 4 + row / 2; }
__device__ int32_t row_of(int32_t line) { return line % 4 * 2 + line / 4; }

// The warp's groups of one stage, of which so many inputs are there.
__device__ void multiply_piece(float (&sums)[2][4], uint32_t stage, int32_t inputs,
                               const uint4 (&rows)[kGroupsOfWarp]) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t at = piece_at(stage + warp / 2 * kEightLines, line_of(lane / 4), warp % 2 * 4 + lane % 4);
#pragma unroll
  for (int32_t i = 0; i < kGroupsOfWarp; ++i) {
    if ((warp + kStreamWarps * i) * kGroup >= inputs) break;
    constexpr int32_t kNext = kStreamWarps / 2 * kEightLines;
    const uint4 w = load_shared(at + i * kNext), below = load_shared(at + i * kNext + kBoxBytes);
    const uint4& x = rows[i];
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums[0], {w.x, below.x, w.y, below.y}, x.x, x.y);
    quire::cuda::mma_m16n8k16<__nv_bfloat16>(sums[1], {w.z, below.z, w.w, below.w}, x.z, x.w);
  }
}

// grid: blocks that share the tiles
template <class End>
__global__ void __launch_bounds__(kStreamThreads, kStages > 3 ? 1 : 2)
    stream_kernel(const __grid_constant__ StreamProduct s) {
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<StreamShared*>(memory);
  const Product& p = s.product;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t tiles = s.own_tiles(), pieces = s.pieces, piece = s.panels * kPanelColumns;
  PieceCursor ahead{.first = 0, .pass = 0, .tile = 0, .piece = 0, .left = tiles * pieces};  // asked for next
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&s.weights);
    for (int32_t i = 0; i < kStages; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kStreamWarps);
    }
    fence_proxy_async();
#pragma unroll 1
    for (int32_t i = 0; i < kStages && ahead.left > 0; ++i, ahead.next(tiles, pieces))
      load_piece<End>(s, shared, i, ahead);
  }
  __syncthreads();
  griddep_wait();
  griddep_launch_dependents();

  const int32_t live = live_rows_of(p);
  constexpr int32_t kGroupsAhead = 8;  // rows of 4096
  const RowFactor<kGroupsAhead> own_factor(p, warp);
  PipelineState place;
  HeldRows rows;
  for (int32_t first = 0; first < tiles; first += kHeldTiles) {
    // What this thread adds up and stores: one of the tile's pairs for one of the tokens.
    const int32_t odd = warp % 2, t = warp / 2, token = lane % 4 * 2 + odd;
    const bool finishes = t < kHeldTiles && first + t < tiles;
    End end(p, finishes ? s.first_tile() + first + t : 0);
    end.load(p, finishes ? token : p.room);
    float sums[kHeldTiles][2][4] = {};
    for (int32_t pass = 0; pass < pieces; pass += kHeldPieces) {
      if (first == 0 || pieces > kHeldPieces) load_rows(rows, p, piece, pass);
#pragma unroll
      for (int32_t of = 0; of < kHeldTiles; ++of) {
        if (first + of >= tiles) break;
#pragma unroll
        for (int32_t c = 0; c < kHeldPieces; ++c) {
          if (pass + c >= pieces) break;
          wait(&shared.full[place.stage], place.phase);
          multiply_piece(sums[of], shared_address(shared.ring[place.stage]), min(piece, p.inputs - (pass + c) * piece),
                         rows[c]);
          __syncwarp();
          if (lane == 0) arrive(&shared.empty[place.stage]);
          if (threadIdx.x == 0 && ahead.left > 0) {
            wait(&shared.empty[place.stage], place.phase);
            load_piece<End>(s, shared, place.stage, ahead);
            ahead.next(tiles, pieces);
          }
          place.next(kStages);
        }
      }
    }
    if (first > 0) __syncthreads();  // until the sums before are read
#pragma unroll
    for (int32_t t = 0; t < kHeldTiles; ++t)
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) shared.sums[t][warp][i][lane] = sums[t][0][i] + sums[t][1][i];
    if (first == 0 && p.squares) {
      const float factor = own_factor.value(p);
      if (lane == 0) shared.factors[warp] = factor;
    }
    __syncthreads();
    if (!finishes) continue;
    float low = 0, high = 0;
    const int32_t from = row_of(lane / 4) * 4 + lane % 4;
#pragma unroll
    for (int32_t w = 0; w < kStreamWarps; ++w) {
      low += shared.sums[t][w][odd][from];
      high += shared.sums[t][w][odd + 2][from];
    }
    const float factor = p.squares ? shared.factors[token] : 1;
    end.store(p, low * factor, high * factor, token < live);
  }
}

// --- the host's side

template <class End>
void launch_stream(const Product& p, cudaStream_t stream) {
  static const int32_t multiprocessors = [] {
    int device = 0, count = 0;
    check_cuda(cudaGetDevice(&device), "no device");
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "no count");
    check_cuda(cudaFuncSetAttribute(stream_kernel<End>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(sizeof(StreamShared))),
               "no shared memory for products");
    return count;
  }();
  const auto parts_of = [](int32_t whole, int32_t part) { return (whole + part - 1) / part; };
  const int32_t tiles = p.weight_rows() / kTileHeight, turns = parts_of(tiles, multiprocessors);
  const int32_t pieces = parts_of(p.inputs, kMostPiece), panels = parts_of(p.inputs / kPanelColumns, pieces);
  quire::cuda::launch_after(
      stream_kernel<End>, dim3(static_cast<uint32_t>(parts_of(tiles, turns))), kStreamThreads, sizeof(StreamShared),
      stream, "matmul",
      StreamProduct{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kHalfTile, panels),
                    .product = p,
                    .tiles = tiles,
                    .turns = turns,
                    .pieces = pieces,
                    .panels = panels});
}

}  // namespace

void multiply_stream(const Product& p, cudaStream_t stream) {
  if (p.has_heads) return launch_stream<HeadsEnd>(p, stream);
  if (p.join == PackedMatrix::Join::stack) return launch_stream<RowsEnd<PackedMatrix::Join::stack>>(p, stream);
  launch_stream<RowsEnd<PackedMatrix::Join::gate_and_up>>(p, stream);
}

}  // namespace quire::ops::cuda
