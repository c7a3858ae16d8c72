// Products of any number of rows with large matrices on Hopper, where a row's bits must be its own, and where cuBLASLt
// is missing. With few rows reading the weights takes most of the time, but every tile of them needs all rows, which
// come from the second cache each time. So tiles are as high as registers allow, 256 outputs, which then is a quarter
// more traffic at 64 rows and not twice as much.
//
//   two warpgroups   multiply: each has 128 outputs, two sets of sums by wgmma, weights as its rows, tokens as columns
//   a third          fills stages of 64 inputs: 256 rows of weights, and the tokens' rows; the first of weights before
//                    the kernel waits for the one before it. Tokens come by TMA, weights too where tokens are many,
//                    else by cp.async, which takes less time then
//
// A matrix with few tiles is cut along its inputs: every block of a tile has an even share of them, and afterwards adds
// up its share of the tile's sums, in the order of the inputs. Blocks of one group of rows meet in the second cache: a
// tile's are neighbours and begin together, so they may wait for each other, and there is a place for all of them;
// clusters of as many would not all fit at once. Blocks of several groups meet in clusters, in each other's shared
// memory. A matrix with many tiles has blocks that take one tile after the other. How a matrix is cut follows from its
// shape and the device, so a row's bits depend on nothing but the row and the weights.
//
// More than 128 rows are groups of 128. Blocks of some groups take the same tile at the same time, so that its weights
// come from memory once for all of them, and their rows stay in the second cache for the next tile.
#include <cuda.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <mutex>

#include "base/buffer.h"
#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::shared_address;

constexpr int32_t kConsumers = 2, kConsumerThreads = kConsumers * kWarpgroup, kConsumerWarps = kConsumerThreads / 32;
constexpr int32_t kThreads = kConsumerThreads + kWarpgroup;
constexpr int32_t kConsumerRegisters = 208, kProducerRegisters = 80;
constexpr int32_t kHeight = 2;  // sums of 64 outputs that a warpgroup has
constexpr int32_t kMany = 64;   // outputs of one wgmma
constexpr int32_t kTile = kConsumers * kHeight * kMany;
constexpr int32_t kHeightOfGroup = static_cast<int32_t>(kRowGroup), kGroupsOfTile = kTile / kHeightOfGroup;
constexpr int32_t kWeightBytes = kTile * kLineBytes;  // of a stage
constexpr int32_t kMostShared = 227 << 10, kMostSplits = 8;
constexpr int32_t kGroupsAtOnce = 8;
constexpr int32_t kMostTokens = 128, kMostStages = 6;

struct RingBarriers {
  Barrier full[kMostStages], empty[kMostStages];
};

template <int32_t kTokens>
struct Sizes {
  static constexpr bool kBoxes = kTokens > 64;  // of weights by TMA
  static constexpr int32_t kStageBytes = kWeightBytes + kTokens * kLineBytes;
  static constexpr int32_t kBarrierBytes = sizeof(RingBarriers);
  static constexpr int32_t kStages = std::min(kMostStages, (kMostShared - kBarrierBytes) / kStageBytes);
  static constexpr int32_t kShared = kStages * kStageBytes + kBarrierBytes;
  // A unit is what a warp finishes at once: 16 outputs of eight tokens, four sums a lane.
  static constexpr int32_t kEights = kTokens / 8, kUnits = kGroupsOfTile * kEights;
  static constexpr int32_t kUnitBytes = 32 * static_cast<int32_t>(sizeof(float4));
  static_assert(kUnits * kUnitBytes <= kStages * kStageBytes, "sums take the stages' place");
};

struct TiledProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t turns;    // tiles of a block, one after the other
  int32_t splits;   // blocks of a tile; with more than one there is one turn
  int32_t groups;   // of 16 weight rows
  float4* parts;    // [tiles, splits, units, 32], where blocks do not meet in clusters
  int32_t* counts;  // of blocks that came and went, for each tile; 0 before and after
};

template <int32_t kTokens>
struct Ring {
  uint32_t memory;  // 1024-byte aligned
  RingBarriers& barriers;

  __device__ uint32_t stage(int32_t index) const { return memory + index * Sizes<kTokens>::kStageBytes; }
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

// What a block has: its first tile, and a group of kTokens rows.
struct Place {
  int32_t tile, group;

  __device__ int32_t tile_of(int32_t turn) const {
    return tile + turn * static_cast<int32_t>(gridDim.x);  // with several turns a tile is one block's
  }
};
__device__ Place place_of(const TiledProduct& t) {
  const auto tiles = static_cast<int32_t>(gridDim.x) / t.splits, groups = static_cast<int32_t>(gridDim.y);
  const auto tile = static_cast<int32_t>(blockIdx.x) / t.splits, group = static_cast<int32_t>(blockIdx.y);
  if (t.turns > 1) return {tile, group};
  const int32_t index = group * tiles + tile;  // in the order in which blocks begin
  const int32_t first = index / (tiles * kGroupsAtOnce) * kGroupsAtOnce, within = index - first * tiles;
  const int32_t at_once = min(kGroupsAtOnce, groups - first);
  return {within / at_once, first + within % at_once};
}

// --- loading

__device__ void cp_async_by_policy(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}

// All threads: each has the same 16 bytes of every 16th row of a tile.
__device__ void copy_weights(const TiledProduct& t, uint32_t stage, int32_t tile, int32_t step, Barrier* full) {
  const auto thread = static_cast<int32_t>(threadIdx.x) % kWarpgroup, line = thread / 8, piece = thread % 8;
  const uint64_t policy = quire::cuda::evict_first_policy();
  const uint16_t* from = t.product.weights + step * kPanelColumns + piece * 8;
#pragma unroll
  for (int32_t i = 0; i < kGroupsOfTile; ++i) {
    const int32_t row = min(tile * kGroupsOfTile + i, t.groups - 1) * kHeightOfGroup + line;
    cp_async_by_policy(piece_at(stage, i * kHeightOfGroup + line, piece),
                       from + static_cast<int64_t>(row) * t.product.inputs, policy);
  }
  cp_async_arrive(full);
}

template <int32_t kTokens>
__device__ void load_weights(const TiledProduct& t, const Ring<kTokens>& ring, int32_t stage, int32_t tile,
                             int32_t step) {
  Barrier* full = &ring.barriers.full[stage];
  if constexpr (!Sizes<kTokens>::kBoxes) return copy_weights(t, ring.stage(stage), tile, step, full);
  if (threadIdx.x % kWarpgroup == 0) tma_load(ring.stage(stage), &t.weights, full, 0, tile * kTile, step);
}

// By the thread that asks TMA.
template <int32_t kTokens>
__device__ void load_tokens(const TiledProduct& t, const Ring<kTokens>& ring, int32_t stage, int32_t group,
                            int32_t step) {
  using S = Sizes<kTokens>;
  Barrier* full = &ring.barriers.full[stage];
  arrive_expect_tx(full, S::kBoxes ? S::kStageBytes : S::kStageBytes - kWeightBytes);
  tma_load(ring.stage(stage) + kWeightBytes, &t.in, full, 0, group * kTokens, step);
}

template <int32_t kTokens>
__device__ void produce(const TiledProduct& t, const Ring<kTokens>& ring, const Place& place, const Share& share) {
  using S = Sizes<kTokens>;
  const bool speaks = threadIdx.x % kWarpgroup == 0;
  const int32_t all = t.turns * share.count, ahead = min(all, S::kStages);
  const auto step_of = [&](int32_t i) { return share.first + i % share.count; };
  for (int32_t i = 0; i < ahead; ++i) load_weights(t, ring, i, place.tile_of(i / share.count), step_of(i));
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  if (speaks)
    for (int32_t i = 0; i < ahead; ++i) load_tokens(t, ring, i, place.group, step_of(i));
  PipelineState state{0, 1};
  for (int32_t i = ahead; i < all; ++i, state.next(S::kStages)) {
    wait(&ring.barriers.empty[state.stage], state.phase ^ 1);
    if (speaks) load_tokens(t, ring, state.stage, place.group, step_of(i));
    load_weights(t, ring, state.stage, place.tile_of(i / share.count), step_of(i));
  }
}

// --- products

template <int32_t kTokens>
__device__ void multiply_share(const Ring<kTokens>& ring, PipelineState& state, int32_t count,
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
    wait(&ring.barriers.full[state.stage], state.phase);
    if constexpr (!S::kBoxes) fence_proxy_async();  // weights did not come by TMA
    const uint64_t w = wgmma_descriptor(ring.stage(state.stage) + group * kHeight * kMany * kLineBytes);
    const uint64_t x = wgmma_descriptor(ring.stage(state.stage) + kWeightBytes);
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
    if (speaks && last >= 0) arrive(&ring.barriers.empty[last]);
    last = state.stage;
  }
  wgmma_wait<0>();
  if (speaks && last >= 0) arrive(&ring.barriers.empty[last]);
}

constexpr int32_t kConsumersMeet = 1;  // a named barrier
__device__ void consumers_meet() { quire::cuda::named_barrier_sync(kConsumersMeet, kConsumerThreads); }

// --- from sums to results

// The way of a unit to memory: a lane's sums are of two tokens.
template <int32_t kTokens, PackedMatrix::Join kJoin>
class UnitFinish {
 public:
  __device__ UnitFinish(const TiledProduct& t, const Place& place, int32_t tile, int32_t unit)
      : group_(tile * kGroupsOfTile + unit / Sizes<kTokens>::kEights),
        token_(place.group * kTokens + unit % Sizes<kTokens>::kEights * 8 + static_cast<int32_t>(threadIdx.x) % 4 * 2),
        exists_(unit < Sizes<kTokens>::kUnits && group_ < t.groups) {
    if (!exists_) return;
    const int32_t row = group_ * kHeightOfGroup + static_cast<int32_t>(threadIdx.x) % 32 / 4;
    even_ = Finish<kJoin>(t.product, row, token_);
    odd_ = Finish<kJoin>(t.product, row, token_ + 1);
  }
  __device__ bool exists() const { return exists_; }
  __device__ void store(const Product& p, const float4& sums, int32_t live) const {
    if (token_ < live) even_.store(p, sums.x, sums.z);
    if (token_ + 1 < live) odd_.store(p, sums.y, sums.w);
  }

 private:
  int32_t group_, token_;
  bool exists_;
  Finish<kJoin> even_, odd_;
};

template <int32_t kTokens>
__device__ float4 sums_of(const float (&sums)[kHeight][kTokens / 2], int32_t m, int32_t eight) {
  return {sums[m][eight * 4], sums[m][eight * 4 + 1], sums[m][eight * 4 + 2], sums[m][eight * 4 + 3]};
}
// Units of this warp's sums: m counts its 16 outputs, then eights of tokens.
template <int32_t kTokens>
__device__ int32_t unit_of(int32_t m, int32_t eight) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  return ((thread / kWarpgroup * kHeight + m) * (kMany / kHeightOfGroup) + thread / 32 % 4) * Sizes<kTokens>::kEights +
         eight;
}

__device__ void store_shared(uint32_t to, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

// How a tile's blocks see each other's sums: in the second cache.
template <int32_t kTokens>
class MeetInMemory {
  using S = Sizes<kTokens>;

 public:
  __device__ MeetInMemory(const TiledProduct& t, const Ring<kTokens>&, int32_t tile, int32_t rank)
      : t_(t),
        count_(t.counts + tile),
        all_(t.parts + static_cast<int64_t>(tile) * t.splits * S::kUnits * 32 + lane()),
        own_(all_ + rank * S::kUnits * 32) {}
  __device__ void put(int32_t unit, const float4& sums) const { __stcg(own_ + unit * 32, sums); }
  __device__ float4 get(int32_t unit, int32_t rank) const { return __ldcg(all_ + (rank * S::kUnits + unit) * 32); }
  __device__ void wait_for_all() const {
    consumers_meet();
    if (threadIdx.x == 0) {
      int32_t came = add(1) + 1;
      while (came < t_.splits) came = load();
    }
    consumers_meet();
  }
  // The last to leave makes the count 0 again.
  __device__ void leave() const {
    consumers_meet();
    if (threadIdx.x == 0 && add(1) == 2 * t_.splits - 1) atomicExch(count_, 0);
  }

 private:
  static __device__ int32_t lane() { return static_cast<int32_t>(threadIdx.x) % 32; }
  __device__ int32_t add(int32_t x) const {
    int32_t before = 0;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(count_), "r"(x) : "memory");
    return before;
  }
  __device__ int32_t load() const {
    int32_t x = 0;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(count_) : "memory");
    return x;
  }

  const TiledProduct& t_;
  int32_t* count_;
  float4 *all_, *own_;
};

// In a cluster's shared memory, where the stages were. All its threads come to the barriers, the loading ones too.
template <int32_t kTokens>
class MeetInCluster {
  using S = Sizes<kTokens>;

 public:
  __device__ MeetInCluster(const TiledProduct&, const Ring<kTokens>& ring, int32_t, int32_t)
      : own_(ring.memory + threadIdx.x % 32 * sizeof(float4)) {
    consumers_meet();  // nobody reads the stages any more
  }
  __device__ void put(int32_t unit, const float4& sums) const { store_shared(own_ + unit * S::kUnitBytes, sums); }
  __device__ float4 get(int32_t unit, int32_t rank) const { return load_shared_of(own_ + unit * S::kUnitBytes, rank); }
  __device__ void wait_for_all() const { cluster_sync(); }
  __device__ void leave() const {}

 private:
  uint32_t own_;
};

// Each block adds up and finishes some units of the tile.
template <int32_t kTokens, PackedMatrix::Join kJoin, class Meeting>
__device__ void finish_together(const TiledProduct& t, const Ring<kTokens>& ring, const Place& place, int32_t live,
                                const float (&sums)[kHeight][kTokens / 2]) {
  using S = Sizes<kTokens>;
  constexpr int32_t kAtOnce = 2;
  const int32_t rank = static_cast<int32_t>(blockIdx.x) % t.splits, step = t.splits * kConsumerWarps;
  const Meeting meeting(t, ring, place.tile, rank);
#pragma unroll
  for (int32_t m = 0; m < kHeight; ++m)
#pragma unroll
    for (int32_t j = 0; j < S::kEights; ++j) meeting.put(unit_of<kTokens>(m, j), sums_of<kTokens>(sums, m, j));
  const int32_t own = rank * kConsumerWarps + static_cast<int32_t>(threadIdx.x) / 32;
  for (int32_t first = own; first == own || first < S::kUnits; first += kAtOnce * step) {
    const UnitFinish<kTokens, kJoin> ends[kAtOnce] = {{t, place, place.tile, first},
                                                      {t, place, place.tile, first + step}};
    if (first == own) meeting.wait_for_all();
    float4 parts[kAtOnce][kMostSplits];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int32_t r = 0; r < kMostSplits; ++r)
        if (r < t.splits && ends[i].exists()) parts[i][r] = meeting.get(first + i * step, r);
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      if (!ends[i].exists()) continue;
      float4 sum = parts[i][0];
#pragma unroll
      for (int32_t r = 1; r < kMostSplits; ++r)
        if (r < t.splits) {
          sum.x += parts[i][r].x;
          sum.y += parts[i][r].y;
          sum.z += parts[i][r].z;
          sum.w += parts[i][r].w;
        }
      ends[i].store(t.product, sum, live);
    }
  }
  meeting.leave();
}

template <int32_t kTokens, PackedMatrix::Join kJoin, bool kCluster>
__device__ void consume(const TiledProduct& t, const Ring<kTokens>& ring, const Place& place, const Share& share) {
  using Meeting = std::conditional_t<kCluster, MeetInCluster<kTokens>, MeetInMemory<kTokens>>;
  const Product& p = t.product;
  quire::cuda::griddep_wait();
  const int32_t live = live_rows_of(p);
  PipelineState state;
  float sums[kHeight][kTokens / 2];
  for (int32_t turn = 0; turn < t.turns; ++turn) {
    multiply_share<kTokens>(ring, state, share.count, sums);
    if (t.splits > 1) return finish_together<kTokens, kJoin, Meeting>(t, ring, place, live, sums);
#pragma unroll
    for (int32_t m = 0; m < kHeight; ++m)
#pragma unroll
      for (int32_t j = 0; j < Sizes<kTokens>::kEights; ++j) {
        const UnitFinish<kTokens, kJoin> end(t, place, place.tile_of(turn), unit_of<kTokens>(m, j));
        if (end.exists()) end.store(p, sums_of<kTokens>(sums, m, j), live);
      }
  }
}

// grid: blocks that share the tiles, those of a tile side by side; groups of kTokens rows
template <int32_t kTokens, PackedMatrix::Join kJoin, bool kCluster>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ TiledProduct t) {
  using S = Sizes<kTokens>;
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<kTokens> ring{shared_address(shared),
                           *reinterpret_cast<RingBarriers*>(shared + S::kStages * S::kStageBytes)};
  if (threadIdx.x == kConsumerThreads) {
    prefetch_tensor_map(&t.weights);
    prefetch_tensor_map(&t.in);
    for (int32_t i = 0; i < S::kStages; ++i) {
      init_barrier(&ring.barriers.full[i], S::kBoxes ? 1 : kWarpgroup + 1);  // who asks TMA, and all who copy weights
      init_barrier(&ring.barriers.empty[i], kConsumerWarps);
    }
    fence_proxy_async();
  }
  __syncthreads();
  const Share share = share_of(t);
  const Place place = place_of(t);
  const bool meets = kCluster && t.splits > 1;
  if (threadIdx.x < kConsumerThreads) {
    warpgroup_reg_alloc<kConsumerRegisters>();
    consume<kTokens, kJoin, kCluster>(t, ring, place, share);
  } else {
    warpgroup_reg_dealloc<kProducerRegisters>();
    produce<kTokens>(t, ring, place, share);
    if (meets) cluster_sync();
  }
  if (meets) cluster_sync();  // until nobody reads this block's sums
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

// Where blocks of a stream's products meet, for life: a graph may have captured the addresses.
struct MeetingPlace {
  MeetingPlace() {
    check_cuda(cudaMemset(counts.data(), 0, counts.size()), "nothing is cleared");
    check_cuda(cudaDeviceSynchronize(), "nothing is cleared");
  }
  Buffer parts{static_cast<size_t>(multiprocessors()) * kTile * kMostTokens * sizeof(float), quire::Place::device};
  Buffer counts{static_cast<size_t>(multiprocessors()) * sizeof(int32_t), quire::Place::device};
};
MeetingPlace& meeting_place(cudaStream_t stream) {
  static std::mutex mutex;
  static auto& places = *new std::map<cudaStream_t, MeetingPlace>;  // never ends, as the driver may have by then
  const std::lock_guard lock(mutex);
  return places[stream];
}

template <int32_t kTokens, PackedMatrix::Join kJoin, bool kCluster>
void launch_ring(const Product& p, cudaStream_t stream) {
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(ring_kernel<kTokens, kJoin, kCluster>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Sizes<kTokens>::kShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const Deal deal = deal_of(p);
  const MeetingPlace& place = meeting_place(stream);
  const TiledProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kTile, 1),
                       .in = panels_map(p.in, p.room, p.inputs, p.in_stride, kTokens, 1),
                       .product = p,
                       .turns = deal.turns,
                       .splits = deal.splits,
                       .groups = p.weight_rows() / kHeightOfGroup,
                       .parts = reinterpret_cast<float4*>(place.parts.data()),
                       .counts = reinterpret_cast<int32_t*>(place.counts.data())};
  const dim3 grid(static_cast<uint32_t>(deal.blocks), static_cast<uint32_t>(parts_of(p.room, kTokens)));
  quire::cuda::launch_after(ring_kernel<kTokens, kJoin, kCluster>, grid, kThreads, Sizes<kTokens>::kShared, stream,
                            "matmul", t, kCluster && deal.splits > 1 ? deal.splits : 0);
}

template <PackedMatrix::Join kJoin>
void launch_by_rows(const Product& p, cudaStream_t stream) {
  if (p.room <= 16) return launch_ring<16, kJoin, false>(p, stream);
  if (p.room <= 32) return launch_ring<32, kJoin, false>(p, stream);
  if (p.room <= 64) return launch_ring<64, kJoin, false>(p, stream);
  if (p.room <= kMostTokens) return launch_ring<kMostTokens, kJoin, false>(p, stream);
  launch_ring<kMostTokens, kJoin, true>(p, stream);
}

// Lines of 64 columns, counted in further dimensions whose sizes, distances in bytes and share of a box are given.
struct LineDimension {
  int64_t size, distance;
  int32_t box;
};
CUtensorMap map_of(const uint16_t* data, std::initializer_list<LineDimension> lines, CUtensorMapSwizzle swizzle) {
  constexpr size_t kMostDimensions = 4;
  cuuint64_t sizes[kMostDimensions] = {kPanelColumns}, strides[kMostDimensions - 1];
  cuuint32_t box[kMostDimensions] = {kPanelColumns}, steps[kMostDimensions] = {1, 1, 1, 1}, count = 1;
  for (const LineDimension& dimension : lines) {
    sizes[count] = static_cast<cuuint64_t>(dimension.size);
    strides[count - 1] = static_cast<cuuint64_t>(dimension.distance);
    box[count++] = static_cast<cuuint32_t>(dimension.box);
  }
  CUtensorMap map;
  const CUresult result =
      map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, count, const_cast<uint16_t*>(data), sizes, strides, box,
                    steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", sizes[1], " by ", sizes[2], " lines: error ",
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
  return map_of(data, {{rows, stride * 2, box}, {columns / kPanelColumns, kLineBytes, panels}},
                CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap pairs_map(const uint16_t* data, int64_t rows, int64_t columns, int64_t half, int32_t unit) {
  return map_of(data,
                {{rows, columns * 2, unit}, {2, half * columns * 2, 2}, {columns / kPanelColumns, kLineBytes, 1}},
                CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap rows_map(const uint16_t* data, int64_t rows, int64_t columns, int32_t box, int32_t blocks) {
  return map_of(data, {{columns / kPanelColumns, kLineBytes, blocks}, {rows, columns * 2, box}},
                CU_TENSOR_MAP_SWIZZLE_NONE);
}

bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs) {
  constexpr int64_t kLeastBytes = int64_t{5} << 20;
  return has_wgmma() && inputs % kPanelColumns == 0 && row_count(join, outputs) * inputs * 2 >= kLeastBytes;
}

void prepare_ring(cudaStream_t stream) {
  if (has_wgmma()) meeting_place(stream);
}

void multiply_ring(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_by_rows<PackedMatrix::Join::stack>(p, stream);
  launch_by_rows<PackedMatrix::Join::gate_and_up>(p, stream);
}

}  // namespace quire::ops::cuda
