// Products of large matrices with some tens of rows on Hopper, whose results are rows of f32, or queries, keys and
// values in their places. A block of all inputs and few outputs would be given all rows' inputs, many times its
// weights; so the two blocks of a cluster have a tile together, each a half of the inputs (split-K), and add up their
// sums in each other's shared memory, in the order of the inputs. A tile has as few outputs as let all clusters run at
// once.
//
//   two warpgroups   multiply by wgmma, tokens as its rows, weights as its columns: each has half of the tokens, or
//                    where these are 64 half of the weights
//   one thread       asks TMA for stages of 64 inputs, the weights of the first before the kernel waits for the one
//                    before it
//   three warps      find the factors of the norm that the rows come without (RowFactor), for the tokens that this
//                    block brings to memory: every second one
//
// What follows a norm's factor, adds to the residual stream and leaves the next norm's, or rotates, is done where sums
// have been added up: so a layer has no other kernels.
#include <cuda.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::shared_address;

constexpr int32_t kGroups = 2, kConsumers = kGroups * kWarpgroup, kThreads = kConsumers + kWarpgroup;
constexpr int32_t kLoadingWarp = kConsumers / 32, kHelpers = kWarpgroup / 32 - 1;
constexpr int32_t kSplits = 2;   // blocks of a cluster, which share a tile's inputs
constexpr int32_t kHeight = 64;  // tokens of one wgmma
constexpr int32_t kMostShared = 227 << 10, kMostStages = 12;
constexpr int32_t kFour = 4, kEight = 8;  // outputs that a thread adds up at a time, and brings to memory

struct SplitBarriers {
  Barrier full[kMostStages], empty[kMostStages];
};

// kRows: weight rows of a tile.
template <int32_t kTokens_, int32_t kRows_>
struct Sizes {
  static constexpr int32_t kTokens = kTokens_, kRows = kRows_;
  static constexpr bool kSplitsRows = kTokens == kHeight;                     // between the warpgroups; else tokens
  static constexpr int32_t kColumns = kSplitsRows ? kRows / kGroups : kRows;  // of one wgmma
  static constexpr int32_t kWeightBytes = kRows * kLineBytes;                 // of a stage
  static constexpr int32_t kStageBytes = kWeightBytes + kTokens * kLineBytes;
  static constexpr int32_t kOwnTokens = kTokens / kSplits;  // that a block brings to memory
  static constexpr int32_t kExtraBytes = sizeof(SplitBarriers) + kOwnTokens * static_cast<int32_t>(sizeof(float));
  static constexpr int32_t kStages = std::min(kMostStages, (kMostShared - kExtraBytes) / kStageBytes);
  static constexpr int32_t kShared = kStages * kStageBytes + kExtraBytes;
  // Sums take the stages' place, rows of tokens; neighbours begin eight banks apart.
  static constexpr int32_t kSumsStride = kRows + 8;
  static constexpr int32_t kEights = kRows / kEight;  // of a token
  static constexpr int32_t kTurns = (kEights * kOwnTokens + kConsumers - 1) / kConsumers;
  static_assert(kTokens * kSumsStride * static_cast<int32_t>(sizeof(float)) <= kStages * kStageBytes);
  static_assert(kTokens == kHeight || kTokens == kGroups * kHeight);
  static_assert(kShared > kMostShared / 2, "a multiprocessor is one block's, so that tiles are spread over all");
  static_assert(kRows % 32 == 0, "neighbours' sums are eight banks apart, and squares are of groups of 16");
};

struct SplitProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t unit;  // of heads: as many first numbers of pairs, and then their second ones, follow each other in a tile
};

// --- stages

// The weight row of the first number of a head's pair; pairs are counted over all heads.
__device__ int32_t first_row_of_pairs(const HeadTargets& h, int32_t pair) {
  return pair / h.half * 2 * h.half + pair % h.half;
}

template <class S>
struct Ring {
  uint32_t memory;  // 1024-byte aligned
  SplitBarriers& barriers;

  __device__ uint32_t weights(int32_t stage) const { return memory + stage * S::kStageBytes; }
  __device__ uint32_t tokens(int32_t stage) const { return weights(stage) + S::kWeightBytes; }
};

// What a block is for: a half of the inputs, in steps of a stage's, of a tile.
struct Place {
  int32_t tile, first_step, steps;
  __device__ explicit Place(const Product& p) {
    tile = static_cast<int32_t>(blockIdx.x) / kSplits;
    const int32_t all = p.inputs / kPanelColumns;
    first_step = all * split() / kSplits;
    steps = all * (split() + 1) / kSplits - first_step;
  }
  __device__ static int32_t split() { return static_cast<int32_t>(blockIdx.x) % kSplits; }
};

template <class S, class Out>
__device__ void load_weights(const SplitProduct& t, const Ring<S>& ring, const Place& place, int32_t stage,
                             int32_t step) {
  Barrier* full = &ring.barriers.full[stage];
  arrive_expect_tx(full, S::kWeightBytes + t.product.room * kLineBytes);
  const int32_t panel = place.first_step + step;
  if constexpr (Out::kPairs) {
    const int32_t pairs = S::kRows / 2 / t.unit;
    for (int32_t i = 0; i < pairs; ++i)
      tma_load_once(ring.weights(stage) + 2 * i * t.unit * kLineBytes, &t.weights, full, 0,
                    first_row_of_pairs(t.product.heads, (place.tile * pairs + i) * t.unit), 0, panel);
  } else {
    tma_load_once(ring.weights(stage), &t.weights, full, 0, place.tile * S::kRows, panel);
  }
}

template <class S>
__device__ void load_tokens(const SplitProduct& t, const Ring<S>& ring, const Place& place, int32_t stage,
                            int32_t step) {
  tma_load(ring.tokens(stage), &t.in, &ring.barriers.full[stage], 0, 0, place.first_step + step);
}

// One thread.
template <class S, class Out>
__device__ void produce(const SplitProduct& t, const Ring<S>& ring, const Place& place) {
  const int32_t ahead = min(place.steps, S::kStages);
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  for (int32_t i = 0; i < ahead; ++i) load_tokens(t, ring, place, i, i);
  PipelineState state;
  for (int32_t i = ahead; i < place.steps; ++i, state.next(S::kStages)) {
    wait(&ring.barriers.empty[state.stage], state.phase);
    load_weights<S, Out>(t, ring, place, state.stage, i);
    load_tokens(t, ring, place, state.stage, i);
  }
}

// This warp no longer reads a stage.
template <class S>
__device__ void release(const Ring<S>& ring, int32_t stage) {
  if (threadIdx.x % 32 == 0) arrive(&ring.barriers.empty[stage]);
}

template <class S>
__device__ void multiply(const Ring<S>& ring, int32_t steps, float (&sums)[S::kColumns / 2]) {
  const int32_t group = quire::cuda::uniform(static_cast<int32_t>(threadIdx.x) / kWarpgroup);
  const int32_t own_weights = S::kSplitsRows ? group * S::kColumns * kLineBytes : 0;
  const int32_t own_tokens = S::kSplitsRows ? 0 : group * kHeight * kLineBytes;
  PipelineState state, last;
  for (int32_t i = 0; i < steps; ++i) {
    wait(&ring.barriers.full[state.stage], state.phase);
    const uint64_t w = wgmma_descriptor(ring.weights(state.stage) + own_weights);
    const uint64_t x = wgmma_descriptor(ring.tokens(state.stage) + own_tokens);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      constexpr int32_t kSixteen = 32;  // bytes
      wgmma_weights<S::kColumns>(sums, advance_descriptor(x, k * kSixteen), advance_descriptor(w, k * kSixteen),
                                 i + k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0) release(ring, last.stage);
    last = state;
    state.next(S::kStages);
  }
  wgmma_wait<0>();
}

// --- from sums to results

struct TwoFours {
  float4 low, high;
};

__device__ float4 load_four(const float* from) { return __ldcg(reinterpret_cast<const float4*>(from)); }
__device__ float4 plus(const float4& a, const float4& b) {
  return {__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w)};
}
__device__ float4 times(const float4& a, float b) {
  return {__fmul_rn(a.x, b), __fmul_rn(a.y, b), __fmul_rn(a.z, b), __fmul_rn(a.w, b)};
}
__device__ float4 times(const float4& a, const float4& b) {
  return {__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z), __fmul_rn(a.w, b.w)};
}
__device__ float4 minus(const float4& a, const float4& b) {
  return {__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y), __fsub_rn(a.z, b.z), __fsub_rn(a.w, b.w)};
}
__device__ float squares_of(const float4& a) { return a.x * a.x + a.y * a.y + (a.z * a.z + a.w * a.w); }

// Eight neighbouring outputs of a token: set or added to, and then left for the next norm.
template <int32_t kRows>
class RowsOut {
 public:
  static constexpr bool kPairs = false;
  // Columns of the tile.
  __device__ static int32_t low(const SplitProduct&, int32_t eight) { return eight * kEight; }
  __device__ static int32_t high(const SplitProduct& t, int32_t eight) { return low(t, eight) + kFour; }

  RowsOut() = default;
  // What is added to the sums begins its way; `alive`: the token is.
  __device__ RowsOut(const SplitProduct& t, int32_t tile, int32_t eight, int32_t token, bool alive)
      : token_(token), column_(tile * kRows + eight * kEight) {
    const Product& p = t.product;
    has_low_ = alive && column_ < p.outputs;
    has_high_ = alive && column_ + kFour < p.outputs;
    float* row = p.out + token * p.out_stride + column_;
    if (p.store == Store::add) {
      if (has_low_) old_.low = load_four(row);
      if (has_high_) old_.high = load_four(row + kFour);
    }
    if (p.bias) {
      if (has_low_) bias_.low = load_four(p.bias + column_);
      if (has_high_) bias_.high = load_four(p.bias + column_ + kFour);
    }
    if (p.next.weight && has_low_)  // outputs are whole groups of 16
      weight_ = {load_four(p.next.weight + column_), load_four(p.next.weight + column_ + kFour)};
  }
  // By a whole warp.
  __device__ void store(const Product& p, const TwoFours& sums) const {
    const TwoFours x = {plus(old_.low, times(plus(sums.low, bias_.low), p.scale)),
                        plus(old_.high, times(plus(sums.high, bias_.high), p.scale))};
    float* row = p.out + token_ * p.out_stride + column_;
    if (has_low_) *reinterpret_cast<float4*>(row) = x.low;
    if (has_high_) *reinterpret_cast<float4*>(row + kFour) = x.high;
    if (!p.next.weight) return;
    float squares = squares_of(x.low) + squares_of(x.high);
    squares += __shfl_xor_sync(~0u, squares, 1);
    if (!has_low_) return;
    const TwoFours y = {times(x.low, weight_.low), times(x.high, weight_.high)};
    using quire::cuda::pair;
    const int64_t at = static_cast<int64_t>(token_) * p.outputs + column_;
    *reinterpret_cast<uint4*>(p.next.rows + at) = {
        pair<__nv_bfloat16>(y.low.x, y.low.y), pair<__nv_bfloat16>(y.low.z, y.low.w),
        pair<__nv_bfloat16>(y.high.x, y.high.y), pair<__nv_bfloat16>(y.high.z, y.high.w)};
    if (column_ % kRowGroup == 0) p.next.squares[at / kRowGroup] = squares;
  }

 private:
  int32_t token_ = 0, column_ = 0;
  bool has_low_ = false, has_high_ = false;
  TwoFours old_ = {}, bias_ = {}, weight_ = {};
};

// Of a query, key or value the numbers of four pairs that rope turns: each head goes to its place.
template <int32_t kRows>
class HeadsOut {
 public:
  static constexpr bool kPairs = true;
  __device__ static int32_t low(const SplitProduct& t, int32_t eight) {
    const int32_t pair = eight * kFour;
    return pair / t.unit * 2 * t.unit + pair % t.unit;
  }
  __device__ static int32_t high(const SplitProduct& t, int32_t eight) { return low(t, eight) + t.unit; }

  HeadsOut() = default;
  __device__ HeadsOut(const SplitProduct& t, int32_t tile, int32_t eight, int32_t token, bool alive) {
    const Product& p = t.product;
    const HeadTargets& h = p.heads;
    const int32_t pair = tile * (kRows / 2) + eight * kFour, head = pair / h.half, in_head = pair % h.half;
    const int32_t row = first_row_of_pairs(h, pair);
    const bool is_query = head < h.heads, is_value = head >= h.heads + h.kv_heads;
    exists_ = alive && head < h.heads + 2 * h.kv_heads;
    if (!exists_) return;
    half_ = h.half;
    data_ = is_query ? h.q.data : is_value ? h.values : h.keys;
    type_ = is_query ? h.q.type : h.kv_type;
    const int64_t stride = is_query ? h.q.row_stride : is_value ? h.value_stride : h.key_stride;
    const int32_t before = is_query ? 0 : is_value ? h.heads + h.kv_heads : h.heads;
    const int32_t index = is_query ? token : *reinterpret_cast<const volatile int32_t*>(&h.slots[token].value);
    at_ = index * stride + row - before * 2 * h.half;
    if (p.bias) {
      const float* bias = p.bias + row;
      bias_ = {load_four(bias), load_four(bias + h.half)};
    }
    turns_ = !is_value;
    if (!turns_) return;
    const int64_t angle = static_cast<int64_t>(token) * h.half + in_head;
    cos_ = load_four(h.cos + angle);
    sin_ = load_four(h.sin + angle);
  }
  __device__ void store(const Product&, const TwoFours& sums) const {
    if (!exists_) return;
    const float4 low = plus(sums.low, bias_.low), high = plus(sums.high, bias_.high);
    put(at_, turns_ ? minus(times(low, cos_), times(high, sin_)) : low);
    put(at_ + half_, turns_ ? plus(times(high, cos_), times(low, sin_)) : high);
  }

 private:
  __device__ void put(int64_t at, const float4& x) const {
    if (type_ == Dtype::f32)
      *reinterpret_cast<float4*>(reinterpret_cast<float*>(data_) + at) = x;
    else if (type_ == Dtype::bf16)
      put_two(at, quire::cuda::pair<__nv_bfloat16>(x.x, x.y), quire::cuda::pair<__nv_bfloat16>(x.z, x.w));
    else
      put_two(at, quire::cuda::pair<__half>(x.x, x.y), quire::cuda::pair<__half>(x.z, x.w));
  }
  __device__ void put_two(int64_t at, uint32_t low, uint32_t high) const {
    *reinterpret_cast<uint2*>(reinterpret_cast<uint16_t*>(data_) + at) = {low, high};
  }

  bool exists_ = false, turns_ = false;
  int32_t half_ = 0;
  std::byte* data_ = nullptr;
  Dtype type_ = Dtype::f32;
  int64_t at_ = 0;
  TwoFours bias_ = {};
  float4 cos_ = {}, sin_ = {};
};

template <class S>
__device__ void put_sums(std::byte* shared, const float (&sums)[S::kColumns / 2]) {
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % 32, group = thread / kWarpgroup;
  const int32_t token = (S::kSplitsRows ? 0 : group * kHeight) + thread / 32 % 4 * 16 + lane / 4;
  const int32_t column = (S::kSplitsRows ? group * S::kColumns : 0) + lane % 4 * 2;
  float* to = reinterpret_cast<float*>(shared) + token * S::kSumsStride + column;
#pragma unroll
  for (int32_t i = 0; i < S::kColumns / 8; ++i) {
    *reinterpret_cast<float2*>(to + i * 8) = {sums[i * 4], sums[i * 4 + 1]};
    *reinterpret_cast<float2*>(to + i * 8 + 8 * S::kSumsStride) = {sums[i * 4 + 2], sums[i * 4 + 3]};
  }
}

// Four sums of a token, of both blocks, in the order of the inputs.
template <class S>
__device__ float4 add_up(uint32_t memory, int32_t token, int32_t column) {
  const uint32_t here = memory + (token * S::kSumsStride + column) * static_cast<int32_t>(sizeof(float));
  return plus(load_shared_of(here, 0), load_shared_of(here, 1));
}

// What a thread brings to memory: eights of outputs of every kSplits-th token, each of a block's threads the next.
template <class S>
struct Turn {
  int32_t own, eight, token;  // own: counts this block's tokens
  bool alive;
  __device__ Turn(int32_t turn, int32_t live) {
    const int32_t index = turn * kConsumers + static_cast<int32_t>(threadIdx.x);
    own = index / S::kEights;
    eight = index % S::kEights;
    token = own * kSplits + Place::split();
    alive = own < S::kOwnTokens && token < live;
  }
};

template <class S, class Out>
__device__ void consume(const SplitProduct& t, const Ring<S>& ring, const Place& place, std::byte* shared,
                        const float* factors) {
  const Product& p = t.product;
  quire::cuda::griddep_wait();
  const int32_t live = live_rows_of(p);
  {
    float sums[S::kColumns / 2];
    multiply<S>(ring, place.steps, sums);
    quire::cuda::named_barrier_sync(1, kConsumers);  // nobody here reads the stages any more
    put_sums<S>(shared, sums);
  }
  Out outs[S::kTurns];
#pragma unroll
  for (int32_t i = 0; i < S::kTurns; ++i) {  // what is added to the sums is on its way while the blocks meet
    const Turn<S> turn(i, live);
    outs[i] = Out(t, place.tile, turn.eight, turn.token, turn.alive);
  }
  cluster_sync();  // the factors are there, too
#pragma unroll
  for (int32_t i = 0; i < S::kTurns; ++i) {
    const Turn<S> turn(i, live);
    TwoFours x = {};
    if (turn.alive) {
      x = {add_up<S>(ring.memory, turn.token, Out::low(t, turn.eight)),
           add_up<S>(ring.memory, turn.token, Out::high(t, turn.eight))};
      if (p.squares) x = {times(x.low, factors[turn.own]), times(x.high, factors[turn.own])};
    }
    outs[i].store(p, x);
  }
}

// By kHelpers warps.
template <class S>
__device__ void find_factors(const Product& p, float* factors) {
  if (!p.squares) return;
  quire::cuda::griddep_wait();
  constexpr int32_t kAhead = 8;  // rows of 4096
  const int32_t helper = static_cast<int32_t>(threadIdx.x) / 32 - kLoadingWarp - 1;
#pragma unroll 2
  for (int32_t own = helper; own < S::kOwnTokens; own += kHelpers) {
    const float factor = RowFactor<kAhead>(p, own * kSplits + Place::split()).value(p);
    if (threadIdx.x % 32 == 0) factors[own] = factor;
  }
}

// grid: clusters of kSplits blocks, one for each tile
template <class S, class Out>
__global__ void __launch_bounds__(kThreads, 1) split_k_kernel(const __grid_constant__ SplitProduct t) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& barriers = *reinterpret_cast<SplitBarriers*>(shared + S::kStages * S::kStageBytes);
  auto* factors = reinterpret_cast<float*>(&barriers + 1);
  const Ring<S> ring{shared_address(shared), barriers};
  const Place place(t.product);
  const int32_t warp = quire::cuda::uniform(static_cast<int32_t>(threadIdx.x) / 32);
  if (warp == kLoadingWarp && elect_one()) {
    prefetch_tensor_map(&t.weights);
    prefetch_tensor_map(&t.in);
    for (int32_t i = 0; i < S::kStages; ++i) {
      init_barrier(&barriers.full[i], 1);
      init_barrier(&barriers.empty[i], kConsumers / 32);
    }
    fence_proxy_async();
    for (int32_t i = 0; i < min(place.steps, S::kStages); ++i) load_weights<S, Out>(t, ring, place, i, i);
  }
  __syncthreads();
  if (warp < kLoadingWarp) {
    consume<S, Out>(t, ring, place, shared, factors);
  } else {
    if (warp > kLoadingWarp)
      find_factors<S>(t.product, factors);
    else if (elect_one())
      produce<S, Out>(t, ring, place);
    __syncwarp();
    cluster_sync();
  }
  cluster_sync();  // until nobody reads this block's sums
}

// --- the host's side

// A head's first numbers that lie side by side in a tile, and its second ones behind them.
constexpr int32_t kUnitRows = 8;
int32_t unit_of(int32_t half, int32_t tile_rows) {
  int32_t unit = kUnitRows;
  while (half > 0 && half % (2 * unit) == 0 && tile_rows / 2 % (2 * unit) == 0) unit *= 2;
  return unit;
}

// Tiles whose clusters run at once.
template <class S>
int32_t most_tiles() {
  static const int32_t most = [] {
    int least = std::numeric_limits<int>::max();
    for (const auto kernel : {split_k_kernel<S, RowsOut<S::kRows>>, split_k_kernel<S, HeadsOut<S::kRows>>}) {
      check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared),
                 "no shared memory for products");
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {.x = kSplits, .y = 1, .z = 1};
      const cudaLaunchConfig_t launch = {.gridDim = dim3(kSplits),
                                         .blockDim = dim3(kThreads),
                                         .dynamicSmemBytes = S::kShared,
                                         .stream = nullptr,
                                         .attrs = &cluster,
                                         .numAttrs = 1};
      int clusters = 0;
      check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch), "no clusters");
      least = std::min(least, clusters);
    }
    return least;
  }();
  return most;
}

template <class S, class Out>
void launch_split_k(const Product& p, cudaStream_t stream) {
  SplitProduct t{.weights = {},
                 .in = panels_map(p.in, p.room, p.inputs, p.in_stride, p.room, 1),
                 .product = p,
                 .unit = unit_of(p.heads.half, S::kRows)};
  t.weights = Out::kPairs ? pairs_map(p.weights, p.weight_rows(), p.inputs, p.heads.half, t.unit)
                          : panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, S::kRows, 1);
  const int32_t tiles = (p.weight_rows() + S::kRows - 1) / S::kRows;
  quire::cuda::launch_after(split_k_kernel<S, Out>, dim3(static_cast<uint32_t>(tiles * kSplits)), kThreads, S::kShared,
                            stream, "matmul", t, kSplits);
}

template <class S>
void launch_by_end(const Product& p, cudaStream_t stream) {
  (p.has_heads ? launch_split_k<S, HeadsOut<S::kRows>> : launch_split_k<S, RowsOut<S::kRows>>)(p, stream);
}

constexpr std::integer_sequence<int32_t, 32, 64, 96, 128> kTileRows;

// The height of the lowest tiles whose clusters run at once; 0: none.
template <int32_t kTokens>
int32_t tile_rows(int64_t weight_rows) {
  const auto lowest = [&]<int32_t... kRows>(std::integer_sequence<int32_t, kRows...>) {
    int32_t rows = 0;
    ((weight_rows <= int64_t{most_tiles<Sizes<kTokens, kRows>>()} * kRows && (rows = kRows) > 0) || ...);
    return rows;
  };
  return lowest(kTileRows);
}

template <int32_t kTokens>
void launch_by_rows(const Product& p, cudaStream_t stream) {
  const int32_t rows = tile_rows<kTokens>(p.weight_rows());
  check(rows > 0, "this GPU has no room for the clusters of ", p.weight_rows(), " weight rows");
  const auto launch = [&]<int32_t... kRows>(std::integer_sequence<int32_t, kRows...>) {
    ((rows == kRows && (launch_by_end<Sizes<kTokens, kRows>>(p, stream), true)) || ...);
  };
  launch(kTileRows);
}

}  // namespace

bool suits_split_k(int64_t weight_rows, int64_t inputs) {
  constexpr int64_t kLeastRows = 2048;                       // else many multiprocessors have no part
  constexpr int64_t kLeastInputs = kSplits * kPanelColumns;  // each block has a stage
  return weight_rows >= kLeastRows && inputs >= kLeastInputs && tile_rows<kMostFusedRows>(weight_rows) > 0;
}

bool stores_heads_by_split_k(const HeadTargets& h) {
  for (const void* fours :
       {static_cast<const void*>(h.cos), static_cast<const void*>(h.sin), static_cast<const void*>(h.q.data),
        static_cast<const void*>(h.keys), static_cast<const void*>(h.values)})
    if (reinterpret_cast<uintptr_t>(fours) % sizeof(float4) != 0) return false;
  for (const int64_t stride : {h.q.row_stride, h.key_stride, h.value_stride})
    if (stride % kFour != 0) return false;
  return !h.adjacent_pairs && h.half % kUnitRows == 0 && h.key_dim == 2 * h.half && h.value_dim == h.key_dim;
}

void multiply_split_k(const Product& p, cudaStream_t stream) {
  (p.room <= kHeight ? launch_by_rows<kHeight> : launch_by_rows<kMostFusedRows>)(p, stream);
}

}  // namespace quire::ops::cuda
