// Products with large matrices on Hopper, where reading the weights is what takes the time: tiles of 64 outputs pass
// through a ring of shared memory, which is filled before the kernel waits for its rows, and are the 64 rows of wgmma;
// tokens are its columns.
//
//   two warpgroups   multiply: of a tile's stages one takes the even ones, the other the odd ones; the first adds up
//   and
//                    finishes while the second is at the next tile
//   one warp         asks TMA for stages of 128 inputs: 64 rows of weights, and the tokens' rows
//
// A tile is one block's, over all inputs. An output is four sums, each in ascending order of steps of 16 inputs, of
// every fourth panel of 64 inputs, because one sum's steps would wait for each other; then (0 + 1) + (2 + 3). So a
// row's bits depend on nothing but the row and the weights. Fewer multiprocessors than there are suffice for the whole
// bandwidth, so tiles are dealt out evenly, not to as many blocks as possible.
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

constexpr int32_t kTile = 64;                                    // outputs
constexpr int32_t kPanels = 2, kStep = kPanels * kPanelColumns;  // inputs of a stage
constexpr int32_t kConsumers = 2, kThreads = kConsumers * kWarpgroup + 32;
constexpr int32_t kWeightPanel = kTile * kLineBytes, kWeightBytes = kPanels * kWeightPanel;
constexpr int32_t kBarrierBytes = 1024;
constexpr int32_t kMostShared = 227 << 10;

template <int32_t kTokens>
struct Ring {
  static constexpr int32_t kTokenPanel = kTokens * kLineBytes, kTokenBytes = kPanels * kTokenPanel;
  static constexpr int32_t kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int32_t kPartBytes = kTile * kTokens * static_cast<int32_t>(sizeof(float));
  static constexpr int32_t kOwnStages = (kMostShared - kBarrierBytes - kPartBytes) / kStageBytes / kConsumers;
  static constexpr int32_t kStages = kOwnStages * kConsumers;
  static constexpr int32_t kShared = kStages * kStageBytes + kPartBytes + kBarrierBytes;
};

struct RingProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t turns;  // tiles of a block
};

// Each warpgroup has a ring of its own, half of the stages: what it waits for is never further on than the next turn of
// what it has had itself, and two turns are all that a barrier tells apart.
struct Stages {
  uint32_t memory;  // 1024-byte aligned
  float* part;      // of the second warpgroup's sums
  Barrier* full;
  Barrier* empty;
};

template <int32_t kTokens>
__device__ void load_weights(const RingProduct& r, const Stages& s, int32_t stage, int32_t tile, int32_t step) {
  using R = Ring<kTokens>;
  arrive_expect_tx(&s.full[stage], R::kStageBytes);
  tma_load(s.memory + stage * R::kStageBytes, &r.weights, &s.full[stage], 0, tile * kTile, step * kPanels);
}

template <int32_t kTokens>
__device__ void load_tokens(const RingProduct& r, const Stages& s, int32_t stage, int32_t step) {
  using R = Ring<kTokens>;
  tma_load(s.memory + stage * R::kStageBytes + kWeightBytes, &r.in, &s.full[stage], 0,
           static_cast<int32_t>(blockIdx.y) * kTokens, step * kPanels);
}

// The order in which a block's tiles pass: the steps of one after those of the other, in turn to one warpgroup and the
// other. All blocks have as many tiles: some are past the last, where TMA finds zeros.
struct Cursor {
  int32_t turn = 0, step = 0;
  PipelineState places[kConsumers];  // in each warpgroup's own ring

  __device__ int32_t tile() const { return static_cast<int32_t>(blockIdx.x + turn * gridDim.x); }
  __device__ int32_t group() const { return step % kConsumers; }
  __device__ uint32_t phase() const { return group() ? places[1].phase : places[0].phase; }
  template <int32_t kTokens>
  __device__ int32_t stage() const {
    return group() ? Ring<kTokens>::kOwnStages + places[1].stage : places[0].stage;
  }
  template <int32_t kTokens>
  __device__ void next(int32_t steps) {
    if (group())
      places[1].next(Ring<kTokens>::kOwnStages);
    else
      places[0].next(Ring<kTokens>::kOwnStages);
    if (++step == steps) {
      step = 0;
      ++turn;
    }
  }
};

template <int32_t kTokens>
__device__ void produce(const RingProduct& r, const Stages& s, int32_t steps) {
  Cursor weights, tokens;
  for (; weights.turn != r.turns && weights.phase() == 0; weights.next<kTokens>(steps))
    load_weights<kTokens>(r, s, weights.stage<kTokens>(), weights.tile(), weights.step);
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  for (; tokens.turn != weights.turn || tokens.step != weights.step; tokens.next<kTokens>(steps))
    load_tokens<kTokens>(r, s, tokens.stage<kTokens>(), tokens.step);
  for (; weights.turn != r.turns; weights.next<kTokens>(steps)) {
    const int32_t stage = weights.stage<kTokens>();
    wait(&s.empty[stage], weights.phase() ^ 1);
    load_weights<kTokens>(r, s, stage, weights.tile(), weights.step);
    load_tokens<kTokens>(r, s, stage, weights.step);
  }
}

// `count` stages of the warpgroup's ring: sums of both panels, added.
template <int32_t kTokens>
__device__ void multiply_tile(const Stages& s, PipelineState& place, int32_t count, float (&sums)[kTokens / 2]) {
  using R = Ring<kTokens>;
  const int32_t own = threadIdx.x / kWarpgroup * R::kOwnStages;
  const bool speaks = threadIdx.x % 32 == 0;
  int32_t last = -1;
  float second[kTokens / 2];
#pragma unroll
  for (int32_t i = 0; i < kTokens / 2; ++i) sums[i] = second[i] = 0;
  for (int32_t i = 0; i < count; ++i, place.next(R::kOwnStages)) {
    const int32_t stage = own + place.stage;
    wait(&s.full[stage], place.phase);
    const uint32_t at = s.memory + stage * R::kStageBytes;
    const uint64_t w = wgmma_descriptor(at), x = wgmma_descriptor(at + kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < kPanels / 2 * 4; ++k) {
      constexpr int32_t kSixteen = 32;  // bytes
      const int32_t panel = k / 4 * 2, column = k % 4 * kSixteen;
      wgmma_weights<kTokens>(sums, advance_descriptor(w, panel * kWeightPanel + column),
                             advance_descriptor(x, panel * R::kTokenPanel + column), 1);
      wgmma_weights<kTokens>(second, advance_descriptor(w, (panel + 1) * kWeightPanel + column),
                             advance_descriptor(x, (panel + 1) * R::kTokenPanel + column), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (speaks && last >= 0) arrive(&s.empty[last]);
    last = stage;
  }
  wgmma_wait<0>();
  if (speaks && last >= 0) arrive(&s.empty[last]);
#pragma unroll
  for (int32_t i = 0; i < kTokens / 2; ++i) sums[i] += second[i];
}

constexpr int32_t kPartFull = 1, kPartEmpty = 2;  // named barriers

// The second warpgroup's sums go to the first.
template <int32_t kCount>
__device__ void give_part(const Stages& s, const float (&sums)[kCount], bool is_first) {
  if (!is_first) quire::cuda::named_barrier_sync(kPartEmpty, kConsumers * kWarpgroup);
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) s.part[i * kWarpgroup + threadIdx.x % kWarpgroup] = sums[i];
  named_barrier_arrive(kPartFull, kConsumers * kWarpgroup);
}
template <int32_t kCount>
__device__ void take_part(const Stages& s, float (&sums)[kCount], bool is_last) {
  quire::cuda::named_barrier_sync(kPartFull, kConsumers * kWarpgroup);
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) sums[i] += s.part[i * kWarpgroup + threadIdx.x];
  if (!is_last) named_barrier_arrive(kPartEmpty, kConsumers * kWarpgroup);
}

template <int32_t kTokens, PackedMatrix::Join kJoin>
__device__ void consume(const RingProduct& r, const Stages& s, int32_t steps) {
  const int32_t group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  quire::cuda::griddep_wait();
  const int32_t first_token = blockIdx.y * kTokens, live = live_rows_of(r.product);
  PipelineState place;
  for (int32_t turn = 0; turn < r.turns; ++turn) {
    float sums[kTokens / 2];
    multiply_tile<kTokens>(s, place, (steps + 1 - group) / kConsumers, sums);
    if (group == 1) {
      give_part(s, sums, turn == 0);
      continue;
    }
    take_part(s, sums, turn == r.turns - 1);
    const int32_t row = static_cast<int32_t>(blockIdx.x + turn * gridDim.x) * kTile + warp * 16 + lane / 4;
#pragma unroll
    for (int32_t i = 0; i < kTokens / 4; ++i) {
      const int32_t token = first_token + i / 2 * 8 + lane % 4 * 2 + i % 2, at = i / 2 * 4 + i % 2;
      if (token < live) Finish<kJoin>(r.product, row, token).store(r.product, sums[at], sums[at + 2]);
    }
  }
}

// grid: blocks that share the tiles, groups of kTokens rows
template <int32_t kTokens, PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ RingProduct r) {
  using R = Ring<kTokens>;
  extern __shared__ __align__(1024) std::byte shared[];
  std::byte* behind = shared + R::kStages * R::kStageBytes;
  Barrier* barriers = reinterpret_cast<Barrier*>(behind + R::kPartBytes);
  const Stages s{shared_address(shared), reinterpret_cast<float*>(behind), barriers, barriers + R::kStages};
  const int32_t steps = (r.product.inputs + kStep - 1) / kStep;
  if (threadIdx.x == kThreads - 32) {
    prefetch_tensor_map(&r.weights);
    prefetch_tensor_map(&r.in);
    for (int32_t i = 0; i < R::kStages; ++i) {
      init_barrier(&s.full[i], 1);
      init_barrier(&s.empty[i], kWarpgroup / 32);
    }
    fence_proxy_async();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers * kWarpgroup) {
    if (elect_one()) produce<kTokens>(r, s, steps);
  } else {
    consume<kTokens, kJoin>(r, s, steps);
  }
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

struct GpuKind {
  int32_t multiprocessors;
  bool hopper;
};
const GpuKind& gpu_kind() {
  static const GpuKind kind = [] {
    int device = 0, count = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "no device");
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "no count");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "no version");
    return GpuKind{count, major == 9};
  }();
  return kind;
}

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// How a matrix is dealt out.
struct Deal {
  int32_t turns, blocks;
};
Deal deal_of(int32_t weight_rows) {
  const int32_t tiles = parts_of(weight_rows, kTile), turns = parts_of(tiles, gpu_kind().multiprocessors);
  return {turns, parts_of(tiles, turns)};
}

template <int32_t kTokens, PackedMatrix::Join kJoin>
void launch_ring(const Product& p, cudaStream_t stream) {
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(ring_kernel<kTokens, kJoin>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Ring<kTokens>::kShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const Deal deal = deal_of(p.weight_rows());
  const RingProduct r{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kTile, kPanels),
                      .in = panels_map(p.in, p.room, p.inputs, p.in_stride, kTokens, kPanels),
                      .product = p,
                      .turns = deal.turns};
  const dim3 grid(static_cast<uint32_t>(deal.blocks), static_cast<uint32_t>(parts_of(p.room, kTokens)));
  quire::cuda::launch_after(ring_kernel<kTokens, kJoin>, grid, kThreads, Ring<kTokens>::kShared, stream, "matmul", r);
}

template <int32_t kTokens>
void launch_joined(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_ring<kTokens, PackedMatrix::Join::stack>(p, stream);
  launch_ring<kTokens, PackedMatrix::Join::gate_and_up>(p, stream);
}

}  // namespace

CUtensorMap panels_map(const uint16_t* data, int64_t rows, int64_t columns, int64_t stride, int32_t box,
                       int32_t panels) {
  const cuuint64_t sizes[] = {kPanelColumns, static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(columns / kPanelColumns)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride * 2), kLineBytes};
  const cuuint32_t box_sizes[] = {kPanelColumns, static_cast<cuuint32_t>(box), static_cast<cuuint32_t>(panels)},
                   steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint16_t*>(data), sizes, strides, box_sizes,
                    steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", rows, " rows of ", columns, ": error ",
        static_cast<int>(result));
  return map;
}

bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs) {
  constexpr int64_t kLeastBytes = int64_t{5} << 20;
  return gpu_kind().hopper && inputs % kPanelColumns == 0 && row_count(join, outputs) * inputs * 2 >= kLeastBytes;
}

void multiply_ring(const Product& p, cudaStream_t stream) {
  if (p.room <= 8) return launch_joined<8>(p, stream);
  if (p.room <= 16) return launch_joined<16>(p, stream);
  if (p.room <= 32) return launch_joined<32>(p, stream);
  launch_joined<64>(p, stream);
}

}  // namespace quire::ops::cuda
