// Products of any number of rows with large matrices on Hopper, where a row's bits must be its own, and where cuBLASLt
// is missing. With few rows reading the weights takes most of the time, but every tile of them needs all rows, which
// come from the second cache each time. So tiles are as high as registers allow, 256 outputs, which then is a quarter
// more traffic at 64 rows and not twice as much.
//
//   two warpgroups   multiply: each has 128 outputs, two sets of sums by wgmma, weights as its rows, tokens as columns
//   a third          asks TMA for stages of 64 inputs: 256 rows of weights, and the tokens' rows; the first of weights
//                    before the kernel waits for the one before it
//
// A matrix with few tiles is cut along its inputs, a cluster of blocks for each tile: every block has an even share of
// the inputs, and afterwards adds up its share of the cluster's sums, in the order of the inputs. A matrix with many
// tiles has blocks that take one tile after the other. How a matrix is cut follows from its shape and the device, so a
// row's bits depend on nothing but the row and the weights.
//
// More than 128 rows are groups of 128. Blocks of some groups take the same tile at the same time, so that its weights
// come from memory once for all of them, and their rows stay in the second cache for the next tile.
#include <cuda.h>

#include <algorithm>
#include <array>

#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::shared_address;

constexpr int32_t kConsumers = 2, kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int32_t kConsumerRegisters = 232, kProducerRegisters = 40;
constexpr int32_t kHeight = 2;  // sums of 64 outputs that a warpgroup has
constexpr int32_t kMany = 64;   // outputs of one wgmma
constexpr int32_t kTile = kConsumers * kHeight * kMany;
constexpr int32_t kWeightBytes = kTile * kLineBytes;  // of a stage
constexpr int32_t kBarrierBytes = 1024, kMostShared = 227 << 10;
constexpr int32_t kMostSplits = 8;
constexpr int32_t kGroupsAtOnce = 8;

template <int32_t kTokens>
struct Sizes {
  static constexpr int32_t kStageBytes = kWeightBytes + kTokens * kLineBytes;
  static constexpr int32_t kStages = (kMostShared - kBarrierBytes) / kStageBytes;
  static constexpr int32_t kShared = kStages * kStageBytes + kBarrierBytes;
  // What a thread has of eight tokens of a wgmma, and how many such pieces a tile has.
  static constexpr int32_t kGroups = kTokens / 8, kPieces = kTile / kMany * kGroups;
  static_assert(kPieces * kWarpgroup * int32_t{sizeof(float4)} <= kStages * kStageBytes, "sums take the stages' place");
};

struct TiledProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t turns;   // tiles of a cluster, one after the other
  int32_t splits;  // blocks of a cluster; with more than one there is one turn
};

struct Ring {
  uint32_t memory;  // 1024-byte aligned
  Barrier* full;
  Barrier* empty;
};

// What a block has of the inputs, in steps of 64.
struct Share {
  int32_t first, count;
};
__device__ Share share_of(const TiledProduct& t) {
  const int32_t steps = t.product.inputs / kPanelColumns, rank = static_cast<int32_t>(blockIdx.x) % t.splits;
  const int32_t first = steps * rank / t.splits;
  return {first, steps * (rank + 1) / t.splits - first};
}

// What a cluster has: its first tile, and a group of kTokens rows.
struct Place {
  int32_t tile, group;
};
__device__ Place place_of(const TiledProduct& t) {
  const auto tiles = static_cast<int32_t>(gridDim.x) / t.splits, groups = static_cast<int32_t>(gridDim.y);
  const auto tile = static_cast<int32_t>(blockIdx.x) / t.splits, group = static_cast<int32_t>(blockIdx.y);
  if (t.turns > 1) return {tile, group};
  const int32_t index = group * tiles + tile;  // in the order in which clusters begin
  const int32_t first = index / (tiles * kGroupsAtOnce) * kGroupsAtOnce, within = index - first * tiles;
  const int32_t at_once = min(kGroupsAtOnce, groups - first);
  return {within / at_once, first + within % at_once};
}
__device__ int32_t tile_of(const Place& place, int32_t turn) {
  return place.tile + turn * static_cast<int32_t>(gridDim.x);  // with several turns a cluster is one block
}

template <int32_t kTokens>
__device__ void load_weights(const TiledProduct& t, const Ring& ring, int32_t stage, int32_t tile, int32_t step) {
  using S = Sizes<kTokens>;
  arrive_expect_tx(&ring.full[stage], S::kStageBytes);
  tma_load(ring.memory + stage * S::kStageBytes, &t.weights, &ring.full[stage], 0, tile * kTile, step);
}
template <int32_t kTokens>
__device__ void load_tokens(const TiledProduct& t, const Ring& ring, int32_t stage, int32_t group, int32_t step) {
  using S = Sizes<kTokens>;
  tma_load(ring.memory + stage * S::kStageBytes + kWeightBytes, &t.in, &ring.full[stage], 0, group * kTokens, step);
}

template <int32_t kTokens>
__device__ void produce(const TiledProduct& t, const Ring& ring, const Place& place, const Share& share) {
  using S = Sizes<kTokens>;
  const int32_t all = t.turns * share.count, ahead = min(all, S::kStages);
  const auto step_of = [&](int32_t i) { return share.first + i % share.count; };
  for (int32_t i = 0; i < ahead; ++i) load_weights<kTokens>(t, ring, i, tile_of(place, i / share.count), step_of(i));
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  for (int32_t i = 0; i < ahead; ++i) load_tokens<kTokens>(t, ring, i, place.group, step_of(i));
  PipelineState state{0, 1};
  for (int32_t i = ahead; i < all; ++i, state.next(S::kStages)) {
    wait(&ring.empty[state.stage], state.phase ^ 1);
    load_weights<kTokens>(t, ring, state.stage, tile_of(place, i / share.count), step_of(i));
    load_tokens<kTokens>(t, ring, state.stage, place.group, step_of(i));
  }
}

template <int32_t kTokens>
__device__ void multiply_share(const Ring& ring, PipelineState& state, int32_t count,
                               float (&sums)[kHeight][kTokens / 2]) {
  using S = Sizes<kTokens>;
  const int32_t group = threadIdx.x / kWarpgroup;
  const bool speaks = threadIdx.x % 32 == 0;
  int32_t last = -1;
#pragma unroll
  for (int32_t m = 0; m < kHeight; ++m)
#pragma unroll
    for (int32_t i = 0; i < kTokens / 2; ++i) sums[m][i] = 0;
  for (int32_t i = 0; i < count; ++i, state.next(S::kStages)) {
    wait(&ring.full[state.stage], state.phase);
    const uint32_t at = ring.memory + state.stage * S::kStageBytes;
    const uint64_t w = wgmma_descriptor(at + group * kHeight * kMany * kLineBytes);
    const uint64_t x = wgmma_descriptor(at + kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < 4; ++k)
#pragma unroll
      for (int32_t m = 0; m < kHeight; ++m) {
        constexpr int32_t kSixteen = 32;  // bytes
        wgmma_weights<kTokens>(sums[m], advance_descriptor(w, m * kMany * kLineBytes + k * kSixteen),
                               advance_descriptor(x, k * kSixteen), 1);
      }
    wgmma_commit();
    wgmma_wait<1>();
    if (speaks && last >= 0) arrive(&ring.empty[last]);
    last = state.stage;
  }
  wgmma_wait<0>();
  if (speaks && last >= 0) arrive(&ring.empty[last]);
}

// The way of a piece to memory: piece % groups says which eight tokens, piece / groups which 64 outputs of the tile.
template <int32_t kTokens, PackedMatrix::Join kJoin>
class PieceFinish {
 public:
  __device__ PieceFinish(const Product& p, int32_t tile, int32_t group, int32_t piece)
      : token_(group * kTokens + piece % Sizes<kTokens>::kGroups * 8 + static_cast<int32_t>(threadIdx.x) % 4 * 2),
        first_(p, row_of(tile, piece), token_),
        second_(p, row_of(tile, piece), token_ + 1) {}
  __device__ void store(const Product& p, int32_t live, const float4& sums) const {
    if (token_ < live) first_.store(p, sums.x, sums.z);
    if (token_ + 1 < live) second_.store(p, sums.y, sums.w);
  }

 private:
  static __device__ int32_t row_of(int32_t tile, int32_t piece) {
    const int32_t thread = static_cast<int32_t>(threadIdx.x) % kWarpgroup;
    return tile * kTile + piece / Sizes<kTokens>::kGroups * kMany + thread / 32 * 16 + thread % 32 / 4;
  }
  int32_t token_;
  Finish<kJoin> first_, second_;
};

template <int32_t kTokens>
__device__ float4 piece_of(const float (&sums)[kHeight][kTokens / 2], int32_t m, int32_t j) {
  return {sums[m][j * 4], sums[m][j * 4 + 1], sums[m][j * 4 + 2], sums[m][j * 4 + 3]};
}

constexpr int32_t kStagesAreFree = 1;  // a named barrier

// Sixteen bytes of the shared memory of the block of that rank, where `here` lies in this one's.
__device__ float4 load_shared_of([[maybe_unused]] uint32_t here, [[maybe_unused]] int32_t rank) {
  float4 x = {};
#if QUIRE_HOPPER
  asm volatile(
      "{\n"
      "  .reg .b32 there;\n"
      "  mapa.shared::cluster.u32 there, %4, %5;\n"
      "  ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(here), "r"(rank)
      : "memory");
#endif
  return x;
}
__device__ void store_shared(uint32_t to, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// All blocks' sums lie where their stages were; each block adds up and finishes every splits-th piece.
template <int32_t kTokens, PackedMatrix::Join kJoin>
__device__ void finish_together(const TiledProduct& t, const Ring& ring, const Place& place, int32_t live,
                                const float (&sums)[kHeight][kTokens / 2]) {
  using S = Sizes<kTokens>;
  constexpr int32_t kPieceBytes = kWarpgroup * int32_t{sizeof(float4)};
  const int32_t group = threadIdx.x / kWarpgroup, thread = threadIdx.x % kWarpgroup;
  const uint32_t own = ring.memory + thread * sizeof(float4);
  quire::cuda::named_barrier_sync(kStagesAreFree, kConsumers * kWarpgroup);
#pragma unroll
  for (int32_t m = 0; m < kHeight; ++m)
#pragma unroll
    for (int32_t j = 0; j < S::kGroups; ++j)
      store_shared(own + ((group * kHeight + m) * S::kGroups + j) * kPieceBytes, piece_of<kTokens>(sums, m, j));
  cluster_sync();
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % t.splits;
  for (int32_t piece = rank + group * t.splits; piece < S::kPieces; piece += kConsumers * t.splits) {
    const PieceFinish<kTokens, kJoin> finish(t.product, place.tile, place.group, piece);
    float4 parts[kMostSplits];
#pragma unroll
    for (int32_t i = 0; i < kMostSplits; ++i)
      if (i < t.splits) parts[i] = load_shared_of(own + piece * kPieceBytes, i);
    float4 sum = parts[0];
#pragma unroll
    for (int32_t i = 1; i < kMostSplits; ++i)
      if (i < t.splits) {
        sum.x += parts[i].x;
        sum.y += parts[i].y;
        sum.z += parts[i].z;
        sum.w += parts[i].w;
      }
    finish.store(t.product, live, sum);
  }
}

template <int32_t kTokens, PackedMatrix::Join kJoin>
__device__ void consume(const TiledProduct& t, const Ring& ring, const Place& place, const Share& share) {
  const int32_t group = threadIdx.x / kWarpgroup;
  quire::cuda::griddep_wait();
  const int32_t live = live_rows_of(t.product);
  PipelineState state;
  float sums[kHeight][kTokens / 2];
  for (int32_t turn = 0; turn < t.turns; ++turn) {
    multiply_share<kTokens>(ring, state, share.count, sums);
    if (t.splits > 1) return finish_together<kTokens, kJoin>(t, ring, place, live, sums);
#pragma unroll
    for (int32_t m = 0; m < kHeight; ++m)
#pragma unroll
      for (int32_t j = 0; j < Sizes<kTokens>::kGroups; ++j)
        PieceFinish<kTokens, kJoin>(t.product, tile_of(place, turn), place.group,
                                    (group * kHeight + m) * Sizes<kTokens>::kGroups + j)
            .store(t.product, live, piece_of<kTokens>(sums, m, j));
  }
}

// grid: blocks of clusters, which share the tiles; groups of kTokens rows
template <int32_t kTokens, PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ TiledProduct t) {
  using S = Sizes<kTokens>;
  extern __shared__ __align__(1024) std::byte shared[];
  Barrier* barriers = reinterpret_cast<Barrier*>(shared + S::kStages * S::kStageBytes);
  const Ring ring{shared_address(shared), barriers, barriers + S::kStages};
  if (threadIdx.x == kConsumers * kWarpgroup) {
    prefetch_tensor_map(&t.weights);
    prefetch_tensor_map(&t.in);
    for (int32_t i = 0; i < S::kStages; ++i) {
      init_barrier(&ring.full[i], 1);
      init_barrier(&ring.empty[i], kConsumers * kWarpgroup / 32);
    }
    fence_proxy_async();
  }
  __syncthreads();
  const Share share = share_of(t);
  const Place place = place_of(t);
  if (threadIdx.x < kConsumers * kWarpgroup) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kTokens, kJoin>(t, ring, place, share);
  } else {
    warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x / 32 == kConsumers * kWarpgroup / 32 && elect_one()) produce<kTokens>(t, ring, place, share);
    if (t.splits > 1) cluster_sync();
  }
  if (t.splits > 1) cluster_sync();  // until nobody reads this block's sums
}

// --- the host's side

// Of the driver, whose library is there only where a GPU is: asked for by name, not linked.
decltype(&cuTensorMapEncodeTiled) map_encoder() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
               "the driver was not asked for tensor maps");
    check(result == cudaDriverEntryPointSuccess, "the driver is too old: it has no tensor maps");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// How a matrix is dealt out.
struct Deal {
  int32_t splits, turns, blocks;
};
Deal deal_of(const Product& p) {
  const int32_t tiles = parts_of(p.weight_rows(), kTile), steps = p.inputs / kPanelColumns;
  for (int32_t splits = kMostSplits; splits > 1; splits /= 2)
    if (tiles * splits <= multiprocessors() && splits <= steps) return {splits, 1, tiles * splits};
  const int32_t turns = parts_of(tiles, multiprocessors());
  return {1, turns, parts_of(tiles, turns)};
}

template <int32_t kTokens, PackedMatrix::Join kJoin>
void launch_ring(const Product& p, cudaStream_t stream) {
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(ring_kernel<kTokens, kJoin>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Sizes<kTokens>::kShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const Deal deal = deal_of(p);
  const TiledProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kTile, 1),
                       .in = panels_map(p.in, p.room, p.inputs, p.in_stride, kTokens, 1),
                       .product = p,
                       .turns = deal.turns,
                       .splits = deal.splits};
  const dim3 grid(static_cast<uint32_t>(deal.blocks), static_cast<uint32_t>(parts_of(p.room, kTokens)));
  quire::cuda::launch_after(ring_kernel<kTokens, kJoin>, grid, kThreads, Sizes<kTokens>::kShared, stream, "matmul", t,
                            deal.splits > 1 ? deal.splits : 0);
}

template <int32_t kTokens>
void launch_joined(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_ring<kTokens, PackedMatrix::Join::stack>(p, stream);
  launch_ring<kTokens, PackedMatrix::Join::gate_and_up>(p, stream);
}

// Lines of 64 columns, counted in two dimensions whose sizes, distances in bytes and share of a box are given.
CUtensorMap map_of(const uint16_t* data, std::array<int64_t, 2> lines, std::array<int64_t, 2> distances,
                   std::array<int32_t, 2> box, CUtensorMapSwizzle swizzle) {
  const cuuint64_t sizes[] = {kPanelColumns, static_cast<cuuint64_t>(lines[0]), static_cast<cuuint64_t>(lines[1])};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(distances[0]), static_cast<cuuint64_t>(distances[1])};
  const cuuint32_t box_sizes[] = {kPanelColumns, static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1])},
                   steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint16_t*>(data), sizes,
                                        strides, box_sizes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", lines[0], " by ", lines[1], " lines: error ",
        static_cast<int>(result));
  return map;
}

}  // namespace

bool has_wgmma() {
  static const bool hopper = [] {
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "no device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "no version");
    return major == 9;
  }();
  return hopper;
}

CUtensorMap panels_map(const uint16_t* data, int64_t rows, int64_t columns, int64_t stride, int32_t box,
                       int32_t panels) {
  return map_of(data, {rows, columns / kPanelColumns}, {stride * 2, kLineBytes}, {box, panels},
                CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap rows_map(const uint16_t* data, int64_t rows, int64_t columns, int32_t box, int32_t blocks) {
  return map_of(data, {columns / kPanelColumns, rows}, {kLineBytes, columns * 2}, {blocks, box},
                CU_TENSOR_MAP_SWIZZLE_NONE);
}

bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs) {
  constexpr int64_t kLeastBytes = int64_t{5} << 20;
  return has_wgmma() && inputs % kPanelColumns == 0 && row_count(join, outputs) * inputs * 2 >= kLeastBytes;
}

void multiply_ring(const Product& p, cudaStream_t stream) {
  if (p.room <= 16) return launch_joined<16>(p, stream);
  if (p.room <= 32) return launch_joined<32>(p, stream);
  if (p.room <= 64) return launch_joined<64>(p, stream);
  launch_joined<128>(p, stream);
}

}  // namespace quire::ops::cuda
