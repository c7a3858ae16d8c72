// Products with large matrices on Hopper, where reading the weights is what takes the time: tiles of 64 outputs pass
// through a ring of shared memory, which is filled before the kernel waits for its rows, and are the 64 rows of wgmma;
// tokens are its columns.
//
//   warpgroups 0 and 1   multiply, a tile each in turn, and finish it while the other goes on
//   one warp             asks TMA for stages of 128 inputs: 64 rows of weights, the tokens' rows
//
// A tile is one block's, over all inputs: each output is one sum in ascending order of steps of 16 inputs, so a row's
// bits depend on nothing but the row and the weights. Fewer multiprocessors than there are suffice for the whole
// bandwidth (32 of 132 were measured to), so tiles are dealt out evenly, not to as many blocks as possible.
#include <cuda.h>

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
constexpr int32_t kMostShared = 227 << 10, kBarrierBytes = 1024;

template <int32_t kTokens>
struct Ring {
  static constexpr int32_t kTokenPanel = kTokens * kLineBytes, kTokenBytes = kPanels * kTokenPanel;
  static constexpr int32_t kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int32_t kStages = (kMostShared - kBarrierBytes) / kStageBytes;
  static constexpr int32_t kShared = kStages * kStageBytes + kBarrierBytes;
};

struct RingProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t tiles;
};

// A wait that ends, for as long as a mistake in the order of stages could make it endless.
__device__ void wait_for(Barrier* barrier, uint32_t phase) {
#if QUIRE_HOPPER
  for (int32_t i = 0;; ++i) {
    uint32_t done = 0;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
    if (done) return;
    if (i > 1'000'000) __trap();
  }
#endif
}

struct Stages {
  uint32_t memory;  // 1024-byte aligned
  Barrier* full;
  Barrier* empty;
};

template <int32_t kTokens>
__device__ void load_weights(const RingProduct& r, const Stages& s, int32_t stage, int32_t tile, int32_t step) {
  using R = Ring<kTokens>;
  arrive_expect_tx(&s.full[stage], R::kStageBytes);
#pragma unroll
  for (int32_t i = 0; i < kPanels; ++i)
    tma_load(s.memory + stage * R::kStageBytes + i * kWeightPanel, &r.weights, &s.full[stage],
             step * kStep + i * kPanelColumns, 0, tile * kTile);
}

template <int32_t kTokens>
__device__ void load_tokens(const RingProduct& r, const Stages& s, int32_t stage, int32_t step) {
  using R = Ring<kTokens>;
#pragma unroll
  for (int32_t i = 0; i < kPanels; ++i)
    tma_load(s.memory + stage * R::kStageBytes + kWeightBytes + i * R::kTokenPanel, &r.in, &s.full[stage],
             step * kStep + i * kPanelColumns, 0, static_cast<int32_t>(blockIdx.y) * kTokens);
}

// A place in the order in which a block's tiles pass: the steps of one after those of the other.
struct Cursor {
  int32_t tile, step;
  __device__ void next(int32_t steps) {
    if (++step == steps) {
      step = 0;
      tile += gridDim.x;
    }
  }
};

template <int32_t kTokens>
__device__ void produce(const RingProduct& r, const Stages& s, int32_t steps) {
  using R = Ring<kTokens>;
  Cursor weights{static_cast<int32_t>(blockIdx.x), 0}, tokens = weights;
  int32_t filled = 0;
  for (; filled < R::kStages && weights.tile < r.tiles; ++filled, weights.next(steps))
    load_weights<kTokens>(r, s, filled, weights.tile, weights.step);
  quire::cuda::griddep_wait();
  quire::cuda::griddep_launch_dependents();
  for (int32_t stage = 0; stage < filled; ++stage, tokens.next(steps)) load_tokens<kTokens>(r, s, stage, tokens.step);
  PipelineState state;
  for (; weights.tile < r.tiles; weights.next(steps), state.next(R::kStages)) {
    wait_for(&s.empty[state.stage], state.phase);
    load_weights<kTokens>(r, s, state.stage, weights.tile, weights.step);
    load_tokens<kTokens>(r, s, state.stage, weights.step);
  }
}

template <int32_t kTokens>
__device__ void multiply_tile(const Stages& s, int32_t steps, int32_t first, float (&sums)[kTokens / 2]) {
  using R = Ring<kTokens>;
  PipelineState state{first % R::kStages, static_cast<uint32_t>(first / R::kStages & 1)};
  int32_t last = -1;
  const bool speaks = threadIdx.x % 32 == 0;
  for (int32_t step = 0; step < steps; ++step, state.next(R::kStages)) {
    wait_for(&s.full[state.stage], state.phase);
    const uint32_t at = s.memory + state.stage * R::kStageBytes;
    const uint64_t w = wgmma_descriptor(at), x = wgmma_descriptor(at + kWeightBytes);
    wgmma_fence();
#pragma unroll
    for (int32_t i = 0; i < kPanels * 4; ++i) {
      constexpr int32_t kSixteen = 32;  // bytes
      wgmma_weights<kTokens>(sums, advance_descriptor(w, i / 4 * kWeightPanel + i % 4 * kSixteen),
                             advance_descriptor(x, i / 4 * R::kTokenPanel + i % 4 * kSixteen), step + i);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (speaks && last >= 0) arrive(&s.empty[last]);
    last = state.stage;
  }
  wgmma_wait<0>();
  if (speaks) arrive(&s.empty[last]);
}

template <int32_t kTokens, PackedMatrix::Join kJoin>
__device__ void consume(const RingProduct& r, const Stages& s, int32_t steps) {
  const int32_t group = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  quire::cuda::griddep_wait();
  const int32_t first_token = blockIdx.y * kTokens, live = live_rows_of(r.product);
  for (int32_t i = group, tile = blockIdx.x + group * gridDim.x; tile < r.tiles;
       i += kConsumers, tile += kConsumers * gridDim.x) {
    float sums[kTokens / 2];
    // One after the other: who ran ahead of the ring's turn would take an earlier one for its own.
    if (i > 0) quire::cuda::named_barrier_sync(1 + group, kConsumers * kWarpgroup);
    multiply_tile<kTokens>(s, steps, i * steps, sums);
    if (tile + static_cast<int32_t>(gridDim.x) < r.tiles)
      named_barrier_arrive(1 + (group ^ 1), kConsumers * kWarpgroup);
#pragma unroll
    for (int32_t j = 0; j < kTokens / 4; ++j) {
      const int32_t token = first_token + j / 2 * 8 + lane % 4 * 2 + j % 2, at = j / 2 * 4 + j % 2;
      if (token >= live) continue;
      Finish<kJoin>(r.product, tile * kTile + warp * 16 + lane / 4, token).store(r.product, sums[at], sums[at + 2]);
    }
  }
}

// grid: blocks that share the tiles, groups of kTokens rows
template <int32_t kTokens, PackedMatrix::Join kJoin>
__global__ void __launch_bounds__(kThreads, 1) ring_kernel(const __grid_constant__ RingProduct r) {
  using R = Ring<kTokens>;
  extern __shared__ __align__(1024) std::byte shared[];
  Barrier* barriers = reinterpret_cast<Barrier*>(shared + R::kStages * R::kStageBytes);
  const Stages s{shared_address(shared), barriers, barriers + R::kStages};
  const int32_t steps = (r.product.inputs + kStep - 1) / kStep;
  if (threadIdx.x == kThreads - 32) {
    prefetch_tensor_map(&r.weights);
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

// Rows of bf16 in boxes of `box` rows and 64 columns; what is past them is zeros.
CUtensorMap map_of(const uint16_t* data, int64_t rows, int64_t columns, int64_t stride, int32_t box) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), 1, static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride * 2), static_cast<cuuint64_t>(stride * 2)};
  const cuuint32_t box_sizes[] = {kPanelColumns, 1, static_cast<cuuint32_t>(box)}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<uint16_t*>(data), sizes, strides, box_sizes,
                    steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the driver makes no tensor map of ", rows, " rows of ", columns, ": error ",
        static_cast<int>(result));
  return map;
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

template <int32_t kTokens, PackedMatrix::Join kJoin>
void launch_ring(const Product& p, cudaStream_t stream) {
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(ring_kernel<kTokens, kJoin>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Ring<kTokens>::kShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const int32_t tiles = parts_of(p.weight_rows(), kTile);
  const int32_t blocks = parts_of(tiles, parts_of(tiles, gpu_kind().multiprocessors));
  const RingProduct r{.weights = map_of(p.weights, p.weight_rows(), p.inputs, p.inputs, kTile),
                      .in = map_of(p.in, p.room, p.inputs, p.in_stride, kTokens),
                      .product = p,
                      .tiles = tiles};
  const dim3 grid(static_cast<uint32_t>(blocks), static_cast<uint32_t>(parts_of(p.room, kTokens)));
  quire::cuda::launch_after(ring_kernel<kTokens, kJoin>, grid, kThreads, Ring<kTokens>::kShared, stream, "matmul", r);
}

template <int32_t kTokens>
void launch_joined(const Product& p, cudaStream_t stream) {
  if (p.join == PackedMatrix::Join::stack) return launch_ring<kTokens, PackedMatrix::Join::stack>(p, stream);
  launch_ring<kTokens, PackedMatrix::Join::gate_and_up>(p, stream);
}

}  // namespace

bool suits_ring(PackedMatrix::Join join, int64_t outputs, int64_t inputs) {
  constexpr int64_t kLeastBytes = int64_t{5} << 20;
  return gpu_kind().hopper && row_count(join, outputs) * inputs * 2 >= kLeastBytes;
}

void multiply_ring(const Product& p, cudaStream_t stream) {
  if (p.room <= 8) return launch_joined<8>(p, stream);
  if (p.room <= 16) return launch_joined<16>(p, stream);
  if (p.room <= 32) return launch_joined<32>(p, stream);
  if (p.room <= 64) return launch_joined<64>(p, stream);
  launch_joined<128>(p, stream);
}

}  // namespace quire::ops::cuda
