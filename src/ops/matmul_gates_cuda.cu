// Gates and ups of large matrices with some tens to hundreds of rows on Hopper, down to silu's results. Weights are
// read once and products keep the tensor cores busy for as long, so what counts is that no multiprocessor is left over:
// a block has all rows and as many weight rows as make one tile for each multiprocessor, or whole rounds of tiles. With
// 256 rows a block's sums are nearly all registers that a multiprocessor has, so no warp only loads.
//
//   two warpgroups   multiply by wgmma, tokens as its rows, weights as its columns: each has half of the tokens, or
//                    where these are 64 half of the weights
//   one thread       of theirs asks TMA for stages of 64 inputs: weights before the kernel waits for the one before it,
//                    and half of the tokens, which go to both blocks of a cluster; then for the next when all have read
//                    one
//   a third          with up to kMostFusedRows rows finds the factors of the norm that they come without (RowFactor)
//
// Weights of a tile are this block's alone, tokens are the same for all; two blocks that load them for each other halve
// what the second cache has to give.
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

constexpr int32_t kGroups = 2, kConsumers = kGroups * kWarpgroup, kWarps = kConsumers / 32;
constexpr int32_t kCluster = 2;
constexpr uint16_t kBothBlocks = 0b11;
constexpr int32_t kHeight = 64;  // tokens of one wgmma
constexpr int32_t kMostShared = 227 << 10, kMostStages = 8;
constexpr auto kRowsOfGroup = static_cast<int32_t>(kRowGroup), kHalf = static_cast<int32_t>(kHalfGroup);

struct GatesBarriers {
  Barrier full[kMostStages], empty[kMostStages];
};

// kRows: weight rows of a tile.
template <int32_t kTokens, int32_t kRows>
struct Sizes {
  static constexpr bool kSplitsRows = kTokens == kHeight;  // between the warpgroups; else tokens
  static constexpr int32_t kHeights = kSplitsRows ? 1 : kTokens / kHeight / kGroups;
  static constexpr int32_t kColumns = kSplitsRows ? kRows / kGroups : kRows;  // of one wgmma
  static constexpr int32_t kWeightBytes = kRows * kLineBytes;                 // of a stage
  static constexpr int32_t kStageBytes = kWeightBytes + kTokens * kLineBytes;
  static constexpr bool kFactors = kTokens <= kMostFusedRows;
  static constexpr int32_t kThreads = kConsumers + (kFactors ? kWarpgroup : 0);
  static constexpr int32_t kExtraBytes = sizeof(GatesBarriers) + (kFactors ? kTokens * sizeof(float) : 0);
  static constexpr int32_t kStages = std::min(kMostStages, (kMostShared - kExtraBytes) / kStageBytes);
  static constexpr int32_t kShared = kStages * kStageBytes + kExtraBytes;
  static_assert(kColumns % kRowsOfGroup == 0, "a gate and its up are one thread's");
};

struct GatesProduct {
  CUtensorMap weights, in;
  Product product;
  // Tokens that a block asks for: a half of those in the room. What lies behind them is multiplied, too.
  int32_t loaded;
};

// Stages of shared memory, and who fills them: one thread.
template <int32_t kTokens, int32_t kRows>
class Ring {
 public:
  using S = Sizes<kTokens, kRows>;
  __device__ Ring(const GatesProduct& t, std::byte* shared)
      : t_(t),
        memory_(shared_address(shared)),
        barriers_(*reinterpret_cast<GatesBarriers*>(shared + S::kStages * S::kStageBytes)),
        steps_(t.product.inputs / kPanelColumns) {}

  __device__ int32_t steps() const { return steps_; }
  __device__ uint32_t weights(int32_t stage) const { return memory_ + stage * S::kStageBytes; }
  __device__ uint32_t tokens(int32_t stage) const { return weights(stage) + S::kWeightBytes; }

  __device__ void make_barriers() const {
    for (int32_t i = 0; i < S::kStages; ++i) {
      init_barrier(&barriers_.full[i], 1);
      init_barrier(&barriers_.empty[i], kCluster * kWarps);
    }
    fence_proxy_async();
  }
  __device__ void load_weights(int32_t stage, int32_t step) const {
    Barrier* full = &barriers_.full[stage];
    arrive_expect_tx(full, S::kWeightBytes + kCluster * t_.loaded * kLineBytes);
    tma_load_once(weights(stage), &t_.weights, full, 0, static_cast<int32_t>(blockIdx.x) * kRows, step);
  }
  __device__ void load_tokens(int32_t stage, int32_t step) const {
    const int32_t first = static_cast<int32_t>(blockIdx.x) % kCluster * t_.loaded;
    tma_load_multicast(tokens(stage) + first * kLineBytes, &t_.in, &barriers_.full[stage], 0, first, step, kBothBlocks,
                       quire::cuda::evict_normal_policy());
  }
  __device__ void wait_full(const PipelineState& state) const { wait(&barriers_.full[state.stage], state.phase); }
  // Both blocks have read it.
  __device__ void wait_empty(const PipelineState& state) const { wait(&barriers_.empty[state.stage], state.phase); }
  // This warp no longer reads a stage; both blocks fill it.
  __device__ void release(int32_t stage) const {
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    if (lane < kCluster) arrive_at(&barriers_.empty[stage], lane);
  }

 private:
  const GatesProduct& t_;
  uint32_t memory_;  // 1024-byte aligned
  GatesBarriers& barriers_;
  int32_t steps_;
};

template <int32_t kOwn, class R, class S = typename R::S>
__device__ void multiply(const R& ring, float (&sums)[S::kHeights][S::kColumns / 2]) {
  constexpr int32_t kOwnWeights = S::kSplitsRows ? kOwn * S::kColumns * kLineBytes : 0;
  constexpr int32_t kOwnTokens = S::kSplitsRows ? 0 : kOwn * S::kHeights * kHeight * kLineBytes;
  const bool loads = kOwn == 0 && threadIdx.x < 32;
  PipelineState state, last;
  for (int32_t i = 0; i < ring.steps(); ++i) {
    ring.wait_full(state);
    const uint64_t w = wgmma_descriptor(ring.weights(state.stage) + kOwnWeights);
    const uint64_t x = wgmma_descriptor(ring.tokens(state.stage) + kOwnTokens);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < 4; ++k)
#pragma unroll
      for (int32_t m = 0; m < S::kHeights; ++m) {
        constexpr int32_t kSixteen = 32;  // bytes
        wgmma_weights<S::kColumns>(sums[m], advance_descriptor(x, m * kHeight * kLineBytes + k * kSixteen),
                                   advance_descriptor(w, k * kSixteen), i + k > 0);
      }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) {
      ring.release(last.stage);
      if (const int32_t next = i - 1 + S::kStages; loads && next < ring.steps()) {
        ring.wait_empty(last);
        if (elect_one()) {
          ring.load_weights(last.stage, next);
          ring.load_tokens(last.stage, next);
        }
      }
    }
    last = state;
    state.next(S::kStages);
  }
  wgmma_wait<0>();
}

// Of 64 tokens: a lane has two gates and ups of every group of eight, for two tokens. Four lanes that have a token
// together give each other's pairs of four groups, so that each has eight results side by side.
template <int32_t kColumns>
__device__ void store_results(const Product& p, int32_t live, int32_t token, int32_t column, const float2& factors,
                              const float (&sums)[kColumns / 2]) {
  constexpr int32_t kGroupsOfRows = kColumns / kRowsOfGroup, kQuad = 4;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  token += lane / kQuad;
#pragma unroll
  for (int32_t first = 0; first < kGroupsOfRows; first += kQuad)
#pragma unroll
    for (int32_t lower = 0; lower < 2; ++lower) {
      const float factor = lower ? factors.y : factors.x;
      uint32_t words[kQuad] = {};
#pragma unroll
      for (int32_t i = 0; i < kQuad; ++i) {
        if (first + i >= kGroupsOfRows) continue;
        const float* gate = sums + (first + i) * 8 + lower * 2;
        const float* up = gate + 4;
        words[i] = quire::cuda::pair<__nv_bfloat16>(silu(gate[0] * factor) * (up[0] * factor),
                                                    silu(gate[1] * factor) * (up[1] * factor));
      }
      quire::cuda::transpose_quad(words);
      const int32_t group = first + lane % kQuad, at = column + group * kHalf;
      if (group >= kGroupsOfRows || at >= p.outputs / 2 || token + lower * 8 >= live) continue;
      auto* out = reinterpret_cast<__nv_bfloat16*>(p.out + (token + lower * 8) * p.out_stride);
      *reinterpret_cast<uint4*>(out + at) = {words[0], words[1], words[2], words[3]};
    }
}

// All that multiply wait for those that find factors, who do not wait.
constexpr int32_t kFactorsAreThere = 1;  // a named barrier

// One warpgroup's part of a tile.
template <int32_t kOwn, class R, class S = typename R::S>
__device__ void compute(const GatesProduct& t, const R& ring, int32_t first_row, const float* factors) {
  float sums[S::kHeights][S::kColumns / 2];
  multiply<kOwn>(ring, sums);
  const Product& p = t.product;
  const int32_t live = live_rows_of(p);
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32 % 4, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t column = (first_row + (S::kSplitsRows ? kOwn * S::kColumns : 0)) / kRowsOfGroup * kHalf;
  const bool scaled = S::kFactors && p.squares;
  if (scaled) quire::cuda::named_barrier_sync(kFactorsAreThere, S::kThreads);
#pragma unroll
  for (int32_t m = 0; m < S::kHeights; ++m) {
    const int32_t token = ((S::kSplitsRows ? 0 : kOwn * S::kHeights) + m) * kHeight + warp * kRowsOfGroup;
    const float* own = factors + token + lane / 4;
    store_results<S::kColumns>(p, live, token, column, scaled ? float2{own[0], own[8]} : float2{1, 1}, sums[m]);
  }
}

// By one warpgroup.
template <int32_t kTokens>
__device__ void find_factors(const Product& p, float* factors) {
  if (!p.squares) return;
  quire::cuda::griddep_wait();
  constexpr int32_t kAhead = 8, kFinders = kWarpgroup / 32;  // rows of 4096; warps
#pragma unroll 2
  for (int32_t token = static_cast<int32_t>(threadIdx.x) / 32 - kWarps; token < kTokens; token += kFinders) {
    const float factor = RowFactor<kAhead>(p, token).value(p);
    if (threadIdx.x % 32 == 0) factors[token] = factor;
  }
  named_barrier_arrive(kFactorsAreThere, kConsumers + kWarpgroup);
}

// grid: tiles of kRows weight rows, a whole number of clusters
template <int32_t kTokens, int32_t kRows>
__global__ void __launch_bounds__(Sizes<kTokens, kRows>::kThreads, 1)
    gates_kernel(const __grid_constant__ GatesProduct t) {
  using S = Sizes<kTokens, kRows>;
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<kTokens, kRows> ring(t, shared);
  auto* factors = reinterpret_cast<float*>(shared + S::kStages * S::kStageBytes + sizeof(GatesBarriers));
  const int32_t warp = quire::cuda::uniform(static_cast<int32_t>(threadIdx.x) / 32);
  const int32_t ahead = min(ring.steps(), S::kStages);
  if (warp == 0 && elect_one()) {
    prefetch_tensor_map(&t.weights);
    prefetch_tensor_map(&t.in);
    ring.make_barriers();
    for (int32_t i = 0; i < ahead; ++i) ring.load_weights(i, i);
  }
  cluster_sync();  // a block may be sent tokens, and told that a stage is free, from here on
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  if (warp == 0 && elect_one())
    for (int32_t i = 0; i < ahead; ++i) ring.load_tokens(i, i);
  __syncwarp();
  if (warp < kWarps / kGroups)
    compute<0>(t, ring, static_cast<int32_t>(blockIdx.x) * kRows, factors);
  else if (warp < kWarps)
    compute<1>(t, ring, static_cast<int32_t>(blockIdx.x) * kRows, factors);
  else if constexpr (S::kFactors)
    find_factors<kTokens>(t.product, factors);
  cluster_sync();  // until nobody tells this block's barriers anything
}

// --- the host's side

constexpr int32_t up_to_whole(int32_t count, int32_t part) { return (count + part - 1) / part; }

constexpr int32_t kTileRows[] = {128, 160, 192, 224};

// Of the tiles that a matrix may be cut into, those with which its multiprocessors have least to do one after the
// other.
struct Cut {
  int32_t rows, turns;  // of a tile; tiles of a multiprocessor
};
Cut cut_of(int32_t weight_rows) {
  const auto cut = [&](int32_t rows) {
    return Cut{rows, up_to_whole(up_to_whole(weight_rows, rows), multiprocessors())};
  };
  Cut best = cut(kTileRows[0]);
  for (const int32_t rows : kTileRows)
    if (const Cut other = cut(rows); other.rows * other.turns < best.rows * best.turns) best = other;
  return best;
}

template <int32_t kTokens, int32_t kRows>
void launch_gates(const Product& p, cudaStream_t stream) {
  using S = Sizes<kTokens, kRows>;
  static const bool allowed = [] {
    check_cuda(
        cudaFuncSetAttribute(gates_kernel<kTokens, kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared),
        "no shared memory for products");
    return true;
  }();
  (void)allowed;
  constexpr int32_t kLines = 8;  // of the swizzle's pattern, in whole numbers of which each block's tokens lie
  const int32_t loaded = up_to_whole(p.room, kLines * kCluster) * kLines;
  const GatesProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kRows, 1),
                       .in = panels_map(p.in, p.room, p.inputs, p.in_stride, loaded, 1),
                       .product = p,
                       .loaded = loaded};
  const int32_t clusters = up_to_whole(p.weight_rows(), kRows * kCluster);
  quire::cuda::launch_after(gates_kernel<kTokens, kRows>, dim3(static_cast<uint32_t>(clusters * kCluster)), S::kThreads,
                            S::kShared, stream, "matmul", t, kCluster);
}

template <int32_t kRows>
void launch_by_tokens(const Product& p, cudaStream_t stream) {
  if (p.room <= 64) return launch_gates<64, kRows>(p, stream);
  if (p.room <= 128) return launch_gates<128, kRows>(p, stream);
  launch_gates<kMostGatesRows, kRows>(p, stream);
}

}  // namespace

bool suits_gates(int64_t weight_rows) {
  constexpr double kLeastShare = 0.8;  // of all multiprocessors' turns, that have a tile
  const Cut cut = cut_of(static_cast<int32_t>(weight_rows));
  return static_cast<double>(weight_rows) >= kLeastShare * cut.rows * cut.turns * multiprocessors();
}

void multiply_gates(const Product& p, cudaStream_t stream) {
  switch (cut_of(p.weight_rows()).rows) {
    case 128:
      return launch_by_tokens<128>(p, stream);
    case 160:
      return launch_by_tokens<160>(p, stream);
    case 192:
      return launch_by_tokens<192>(p, stream);
    default:
      return launch_by_tokens<224>(p, stream);
  }
}

}  // namespace quire::ops::cuda
