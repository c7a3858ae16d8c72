// Products of large matrices with some tens of rows on Hopper, whose results are rows of f32: what follows attention
// and the feed-forward's end, and queries, keys and values where nothing is fused. A block of all inputs and few
// outputs would be given all rows' inputs, many times its weights; so the blocks of a cluster have a tile together,
// each a stretch of the inputs (split-K), and add up their sums in each other's shared memory, in the order of the
// inputs. A tile has as many outputs as let all clusters run at once.
//
//   two warpgroups   multiply by wgmma, tokens as its rows, half of the tile's weights each as its columns
//   one warp         asks TMA for stages of 128 inputs, the weights of the first before the kernel waits for the one
//                    before it
#include <cuda.h>

#include <algorithm>

#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::shared_address;

constexpr int32_t kGroups = 2, kConsumers = kGroups * kWarpgroup, kThreads = kConsumers + 32;
constexpr int32_t kSplits = 4;  // blocks of a cluster
constexpr int32_t kTokens = kMostSplitKRows;
constexpr int32_t kPanels = 2;  // of a stage
constexpr int32_t kMostShared = 227 << 10, kMostStages = 4;
constexpr int32_t kFour = 4;  // outputs of a thread, when sums are added up

struct SplitBarriers {
  Barrier full[kMostStages], empty[kMostStages];
};

// kRows: weight rows of a tile.
template <int32_t kRows>
struct Sizes {
  static constexpr int32_t kColumns = kRows / kGroups;  // of one wgmma
  static constexpr int32_t kWeightPanel = kRows * kLineBytes, kTokenPanel = kTokens * kLineBytes;
  static constexpr int32_t kStageBytes = kPanels * (kWeightPanel + kTokenPanel);
  static constexpr int32_t kStages =
      std::min(kMostStages, (kMostShared - static_cast<int32_t>(sizeof(SplitBarriers))) / kStageBytes);
  static constexpr int32_t kShared = kStages * kStageBytes + static_cast<int32_t>(sizeof(SplitBarriers));
  // Sums take the stages' place, rows of tokens; neighbours begin eight banks apart.
  static constexpr int32_t kSumsStride = kRows + 8;
  static_assert(kTokens * kSumsStride * static_cast<int32_t>(sizeof(float)) <= kStages * kStageBytes);
  static_assert(kRows % (kSplits * kFour) == 0, "a block adds up whole fours");
  static constexpr int32_t kOwnFours = kRows / kSplits / kFour;  // of a token
  static constexpr int32_t kTurns = (kOwnFours * kTokens + kConsumers - 1) / kConsumers;
};

struct SplitProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t loaded;  // tokens: those in the room. What lies behind them is multiplied, too
};

template <int32_t kRows>
struct Ring {
  using S = Sizes<kRows>;
  uint32_t memory;  // 1024-byte aligned
  SplitBarriers& barriers;

  __device__ uint32_t weights(int32_t stage) const { return memory + stage * S::kStageBytes; }
  __device__ uint32_t tokens(int32_t stage) const { return weights(stage) + kPanels * S::kWeightPanel; }
};

// What a block has of the inputs, in steps of a stage's.
struct Share {
  int32_t first, count;
};
__device__ Share share_of(const Product& p) {
  constexpr int32_t kStep = kPanels * kPanelColumns;
  const int32_t steps = (p.inputs + kStep - 1) / kStep, rank = static_cast<int32_t>(blockIdx.x) % kSplits;
  const int32_t first = steps * rank / kSplits;
  return {first, steps * (rank + 1) / kSplits - first};
}
__device__ int32_t tile_of_block() { return static_cast<int32_t>(blockIdx.x) / kSplits; }

// One thread. Panels past the last are zeros.
template <int32_t kRows>
__device__ void produce(const SplitProduct& t, const Ring<kRows>& ring, const Share& share) {
  using S = Sizes<kRows>;
  const auto load_weights = [&](int32_t stage, int32_t step) {
    Barrier* full = &ring.barriers.full[stage];
    arrive_expect_tx(full, kPanels * (S::kWeightPanel + t.loaded * kLineBytes));
    tma_load_once(ring.weights(stage), &t.weights, full, 0, tile_of_block() * kRows, (share.first + step) * kPanels);
  };
  const auto load_tokens = [&](int32_t stage, int32_t step) {
#pragma unroll
    for (int32_t i = 0; i < kPanels; ++i)
      tma_load(ring.tokens(stage) + i * S::kTokenPanel, &t.in, &ring.barriers.full[stage], 0, 0,
               (share.first + step) * kPanels + i);
  };
  const int32_t ahead = min(share.count, S::kStages);
  for (int32_t i = 0; i < ahead; ++i) load_weights(i, i);
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  for (int32_t i = 0; i < ahead; ++i) load_tokens(i, i);
  PipelineState state;
  for (int32_t i = ahead; i < share.count; ++i, state.next(S::kStages)) {
    wait(&ring.barriers.empty[state.stage], state.phase);
    load_weights(state.stage, i);
    load_tokens(state.stage, i);
  }
}

template <int32_t kRows>
__device__ void multiply(const Ring<kRows>& ring, int32_t steps, float (&sums)[Sizes<kRows>::kColumns / 2]) {
  using S = Sizes<kRows>;
  const int32_t group = quire::cuda::uniform(static_cast<int32_t>(threadIdx.x) / kWarpgroup);
  const bool speaks = threadIdx.x % 32 == 0;
  PipelineState state;
  int32_t last = -1;
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int32_t i = 0; i < steps; ++i, state.next(S::kStages)) {
    wait(&ring.barriers.full[state.stage], state.phase);
    const uint64_t w = wgmma_descriptor(ring.weights(state.stage) + group * S::kColumns * kLineBytes);
    const uint64_t x = wgmma_descriptor(ring.tokens(state.stage));
    wgmma_fence();
#pragma unroll
    for (int32_t panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        constexpr int32_t kSixteen = 32;  // bytes
        wgmma_weights<S::kColumns>(sums, advance_descriptor(x, panel * S::kTokenPanel + k * kSixteen),
                                   advance_descriptor(w, panel * S::kWeightPanel + k * kSixteen), 1);
      }
    wgmma_commit();
    wgmma_wait<1>();
    if (speaks && last >= 0) arrive(&ring.barriers.empty[last]);
    last = state.stage;
  }
  wgmma_wait<0>();
}

// --- from sums to results

// Four neighbouring outputs of one token, which this block adds up and brings to memory: the turn-th of a thread.
template <int32_t kRows>
struct Four {
  int32_t token, column, in_tile;
  __device__ explicit Four(int32_t turn) {
    using S = Sizes<kRows>;
    const int32_t index = turn * kConsumers + static_cast<int32_t>(threadIdx.x);
    token = index / S::kOwnFours;
    in_tile = (static_cast<int32_t>(blockIdx.x) % kSplits * S::kOwnFours + index % S::kOwnFours) * kFour;
    column = tile_of_block() * kRows + in_tile;
  }
  __device__ bool exists(const Product& p, int32_t live) const { return token < live && column < p.outputs; }
  __device__ float4* place(const Product& p) const {
    return reinterpret_cast<float4*>(p.out + token * p.out_stride + column);
  }
};

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

template <int32_t kRows>
__device__ void put_sums(std::byte* shared, const float (&sums)[Sizes<kRows>::kColumns / 2]) {
  using S = Sizes<kRows>;
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32;
  float* to = reinterpret_cast<float*>(shared) + (thread / 32 % 4 * 16 + lane / 4) * S::kSumsStride +
              thread / kWarpgroup * S::kColumns + lane % 4 * 2;
#pragma unroll
  for (int32_t i = 0; i < S::kColumns / 8; ++i) {
    *reinterpret_cast<float2*>(to + i * 8) = {sums[i * 4], sums[i * 4 + 1]};
    *reinterpret_cast<float2*>(to + i * 8 + 8 * S::kSumsStride) = {sums[i * 4 + 2], sums[i * 4 + 3]};
  }
}

__device__ float result(const Product& p, float sum, float bias, float old) {
  return __fadd_rn(old, __fmul_rn(__fadd_rn(sum, bias), p.scale));
}

template <int32_t kRows>
__device__ void add_up(const Product& p, uint32_t memory, int32_t live, const float4 (&old)[Sizes<kRows>::kTurns]) {
  using S = Sizes<kRows>;
#pragma unroll
  for (int32_t turn = 0; turn < S::kTurns; ++turn) {
    const Four<kRows> four(turn);
    if (!four.exists(p, live)) continue;
    const uint32_t here = memory + (four.token * S::kSumsStride + four.in_tile) * static_cast<int32_t>(sizeof(float));
    float4 parts[kSplits];
#pragma unroll
    for (int32_t rank = 0; rank < kSplits; ++rank) parts[rank] = load_shared_of(here, rank);
    float4 sum = parts[0];
#pragma unroll
    for (int32_t rank = 1; rank < kSplits; ++rank) {
      sum.x += parts[rank].x;
      sum.y += parts[rank].y;
      sum.z += parts[rank].z;
      sum.w += parts[rank].w;
    }
    const float4 bias = p.bias ? *reinterpret_cast<const float4*>(p.bias + four.column) : float4{};
    *four.place(p) = {result(p, sum.x, bias.x, old[turn].x), result(p, sum.y, bias.y, old[turn].y),
                      result(p, sum.z, bias.z, old[turn].z), result(p, sum.w, bias.w, old[turn].w)};
  }
}

template <int32_t kRows>
__device__ void consume(const SplitProduct& t, const Ring<kRows>& ring, std::byte* shared, int32_t steps) {
  using S = Sizes<kRows>;
  const Product& p = t.product;
  quire::cuda::griddep_wait();
  const int32_t live = live_rows_of(p);
  float4 old[S::kTurns] = {};
  if (p.store == Store::add)
#pragma unroll
    for (int32_t turn = 0; turn < S::kTurns; ++turn)
      if (const Four<kRows> four(turn); four.exists(p, live)) old[turn] = __ldcg(four.place(p));
  float sums[S::kColumns / 2];
  multiply<kRows>(ring, steps, sums);
  quire::cuda::named_barrier_sync(1, kConsumers);  // nobody reads the stages any more
  put_sums<kRows>(shared, sums);
  cluster_sync();
  add_up<kRows>(p, ring.memory, live, old);
}

// grid: tiles of kRows weight rows, kSplits blocks each
template <int32_t kRows>
__global__ void __launch_bounds__(kThreads, 1) split_k_kernel(const __grid_constant__ SplitProduct t) {
  using S = Sizes<kRows>;
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<kRows> ring{shared_address(shared),
                         *reinterpret_cast<SplitBarriers*>(shared + S::kStages * S::kStageBytes)};
  if (threadIdx.x == kConsumers) {
    prefetch_tensor_map(&t.weights);
    prefetch_tensor_map(&t.in);
    for (int32_t i = 0; i < S::kStages; ++i) {
      init_barrier(&ring.barriers.full[i], 1);
      init_barrier(&ring.barriers.empty[i], kConsumers / 32);
    }
    fence_proxy_async();
  }
  __syncthreads();
  const Share share = share_of(t.product);
  if (threadIdx.x < kConsumers) {
    consume<kRows>(t, ring, shared, share.count);
  } else {
    if (threadIdx.x == kConsumers) produce<kRows>(t, ring, share);
    __syncwarp();
    cluster_sync();
  }
  cluster_sync();  // until nobody reads this block's sums
}

// --- the host's side

template <int32_t kRows>
cudaLaunchConfig_t launch_of(cudaLaunchAttribute& cluster) {
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = kSplits, .y = 1, .z = 1};
  return {.gridDim = dim3(kSplits),
          .blockDim = dim3(kThreads),
          .dynamicSmemBytes = Sizes<kRows>::kShared,
          .stream = nullptr,
          .attrs = &cluster,
          .numAttrs = 1};
}

// Tiles whose clusters run at once.
template <int32_t kRows>
int32_t most_tiles() {
  static const int32_t most = [] {
    check_cuda(
        cudaFuncSetAttribute(split_k_kernel<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, Sizes<kRows>::kShared),
        "no shared memory for products");
    cudaLaunchAttribute cluster = {};
    const cudaLaunchConfig_t launch = launch_of<kRows>(cluster);
    int clusters = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, split_k_kernel<kRows>, &launch), "no clusters");
    return clusters;
  }();
  return most;
}

template <int32_t kRows>
bool fits(int64_t weight_rows) {
  return weight_rows <= int64_t{most_tiles<kRows>()} * kRows;
}

// The lowest tile of which all run at once; 0: none.
int32_t tile_rows(int64_t weight_rows) {
  if (fits<128>(weight_rows)) return 128;
  if (fits<160>(weight_rows)) return 160;
  if (fits<192>(weight_rows)) return 192;
  return fits<224>(weight_rows) ? 224 : 0;
}

template <int32_t kRows>
void launch_split_k(const Product& p, cudaStream_t stream) {
  constexpr int32_t kLines = 8;  // of the swizzle's pattern
  const int32_t loaded = (p.room + kLines - 1) / kLines * kLines;
  const SplitProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kRows, kPanels),
                       .in = panels_map(p.in, p.room, p.inputs, p.in_stride, loaded, 1),
                       .product = p,
                       .loaded = loaded};
  const int32_t tiles = (p.weight_rows() + kRows - 1) / kRows;
  quire::cuda::launch_after(split_k_kernel<kRows>, dim3(static_cast<uint32_t>(tiles * kSplits)), kThreads,
                            Sizes<kRows>::kShared, stream, "matmul", t, kSplits);
}

}  // namespace

bool suits_split_k(int64_t weight_rows) {
  constexpr int64_t kLeastRows = 16 * 128;  // half of the multiprocessors have a part
  return weight_rows >= kLeastRows && tile_rows(weight_rows) > 0;
}

void multiply_split_k(const Product& p, cudaStream_t stream) {
  switch (tile_rows(p.weight_rows())) {
    case 128:
      return launch_split_k<128>(p, stream);
    case 160:
      return launch_split_k<160>(p, stream);
    case 192:
      return launch_split_k<192>(p, stream);
    default:
      return launch_split_k<224>(p, stream);
  }
}

}  // namespace quire::ops::cuda
