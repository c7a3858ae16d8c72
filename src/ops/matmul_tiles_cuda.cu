// Products of some dozens to hundreds of rows with matrices of a few megabytes on Hopper, where latency is what counts:
// a block has 64 outputs of some rows, and all that it multiplies lies in its shared memory, the weights before the
// kernel waits for its rows. Nothing comes in rounds.
//
//   four warpgroups   share the inputs, so that no chain of products is long; each asks TMA for its own weights and
//                     rows, and its sums meet the others' in shared memory
//   a cluster         shares inputs that are too many for a block; its blocks read each other's sums
//
// The sums of warpgroups are added in the order of the inputs.
#include <algorithm>
#include <utility>

#include "base/cuda_call.h"
#include "base/hopper.cuh"
#include "ops/matmul_end_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;
using quire::cuda::check_cuda;
using quire::cuda::shared_address;

constexpr int32_t kWorkers = 4, kThreads = kWorkers * kWarpgroup, kWarps = kThreads / 32;
constexpr int32_t kOutputs = 64, kTiles = kOutputs / static_cast<int32_t>(kRowGroup);  // of a block
constexpr int32_t kEight = 8, kEightBytes = kEight * kLineBytes;  // rows of weights that lie side by side in memory
constexpr int32_t kMostShared = 226 << 10, kMostSplits = 8;

struct TilesProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t tiles;    // of 16 weight rows
  int32_t splits;   // blocks of a cluster
  int32_t panels;   // of a block, each 64 inputs
  int32_t workers;  // warpgroups that have some
  int32_t own;      // of a warpgroup, the last has fewer
};

// What a warpgroup multiplies: rows of weights by eights, each eight's panels side by side; then panels of tokens.
template <int32_t kTokens>
struct Share {
  static constexpr int32_t bytes(int32_t panels) { return panels * (kOutputs + kTokens) * kLineBytes; }
  static constexpr int32_t kSumsBytes = kOutputs * kTokens * static_cast<int32_t>(sizeof(float));
};

template <int32_t kTokens>
struct TilesShared {
  float factors[kTokens];
  Barrier full[kWorkers];
};

// By one thread of the warpgroup.
template <class End, int32_t kTokens>
__device__ void load_weights(const TilesProduct& t, uint32_t to, int32_t column, int32_t panel, Barrier* full) {
  arrive_expect_tx(full, Share<kTokens>::bytes(t.own));
#pragma unroll 1
  for (int32_t tile = 0; tile < kTiles; ++tile) {
    const RowPair rows = End(t.product, column * kTiles + tile).rows(0);
    tma_load(to + 2 * tile * t.own * kEightBytes, &t.weights, full, 0, rows.low, panel);
    tma_load(to + (2 * tile + 1) * t.own * kEightBytes, &t.weights, full, 0, rows.high, panel);
  }
}

// Of weights, whose eights of rows lie that far apart.
__device__ uint64_t weights_descriptor(uint32_t at, int32_t eights) {
  constexpr uint64_t kApart = uint64_t{0xffff} << 32;
  return (wgmma_descriptor(at) & ~kApart) | static_cast<uint64_t>(eights / 16) << 32;
}

template <int32_t kTokens>
__device__ void multiply_share(float (&sums)[kTokens / 2], uint32_t at, int32_t own, int32_t panels) {
  const uint64_t weights = weights_descriptor(at, own * kEightBytes);
  const uint64_t tokens = wgmma_descriptor(at + own * kOutputs * kLineBytes);
  wgmma_fence();
#pragma unroll 1
  for (int32_t i = 0; i < panels; ++i)
#pragma unroll
    for (int32_t k = 0; k < kPanelColumns / 16; ++k)
      wgmma_weights<kTokens>(sums, advance_descriptor(weights, i * kEightBytes + k * 32),
                             advance_descriptor(tokens, i * kTokens * kLineBytes + k * 32), i + k > 0);
  wgmma_commit();
  wgmma_wait<0>();
}

__device__ float load_shared_float_of([[maybe_unused]] uint32_t here, [[maybe_unused]] int32_t rank) {
  float x = 0;
#if QUIRE_HOPPER
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %1, %2;\nld.shared::cluster.f32 %0, [there];\n}"
               : "=f"(x)
               : "r"(here), "r"(rank)
               : "memory");
#endif
  return x;
}

// A sum of the tile: lanes' sums lie side by side.
template <int32_t kTokens, bool kCluster>
__device__ float add_up(const TilesProduct& t, const std::byte* memory, int32_t place) {
  const std::byte* at = memory + (place * 32 + threadIdx.x % 32) * sizeof(float);
  float sum = 0;
#pragma unroll 1
  for (int32_t rank = 0; rank < (kCluster ? t.splits : 1); ++rank) {
    float parts[kWorkers];
#pragma unroll
    for (int32_t w = 0; w < kWorkers; ++w) {
      const std::byte* part = at + min(w, t.workers - 1) * Share<kTokens>::kSumsBytes;
      parts[w] = kCluster ? load_shared_float_of(shared_address(part), rank) : *reinterpret_cast<const float*>(part);
    }
#pragma unroll
    for (int32_t w = 0; w < kWorkers; ++w)
      if (w < t.workers) sum += parts[w];
  }
  return sum;
}

// What a warp finishes: 16 outputs of four tokens at a time.
struct Unit {
  int32_t index;
  __device__ int32_t tile() const { return index % kTiles; }
  __device__ int32_t odd() const { return index / kTiles % 2; }
  __device__ int32_t eight() const { return index / (2 * kTiles); }  // of tokens
  __device__ int32_t token() const { return eight() * kEight + static_cast<int32_t>(threadIdx.x) % 4 * 2 + odd(); }
  __device__ int32_t place(int32_t half) const { return (eight() * kTiles + tile()) * 4 + half * 2 + odd(); }
};

// What make(i) returns for every i, all at once in registers.
template <class T, int32_t kCount>
class Several {
 public:
  template <class Make>
  __device__ explicit Several(const Make& make) : Several(make, std::make_integer_sequence<int32_t, kCount>{}) {}
  __device__ const T& operator[](int32_t i) const { return all_[i]; }

 private:
  template <class Make, int32_t... kIndex>
  __device__ Several(const Make& make, std::integer_sequence<int32_t, kIndex...>) : all_{make(kIndex)...} {}
  T all_[kCount];
};

// grid: clusters of blocks that share inputs, for each 64 weight rows; groups of kTokens tokens
template <int32_t kTokens, bool kCluster, class End>
__global__ void __launch_bounds__(kThreads, kTokens <= 32 ? 2 : 1)
    tiles_kernel(const __grid_constant__ TilesProduct t) {
  extern __shared__ __align__(1024) std::byte memory[];
  __shared__ TilesShared<kTokens> shared;
  constexpr int32_t kUnits = (kTokens + kWarps - 1) / kWarps;  // of a warp, and as many tokens' factors
  constexpr int32_t kGroupsAhead = 2;                          // of a factor: rows of 1024
  using Factor = RowFactor<kGroupsAhead>;
  quire::cuda::griddep_launch_dependents();
  const Product& p = t.product;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t worker = __shfl_sync(~0u, warp / 4, 0);  // the compiler sees that all of a warp have the same
  const int32_t rank = kCluster ? static_cast<int32_t>(blockIdx.x) % t.splits : 0;
  const int32_t column = kCluster ? static_cast<int32_t>(blockIdx.x) / t.splits : static_cast<int32_t>(blockIdx.x);
  const int32_t first_token = static_cast<int32_t>(blockIdx.y) * kTokens;
  const int32_t panel = rank * t.panels + worker * t.own;
  const int32_t panels = min(min(t.own, t.panels - worker * t.own), p.inputs / kPanelColumns - panel);
  const uint32_t share = shared_address(memory) + worker * Share<kTokens>::bytes(t.own);
  const bool loads = threadIdx.x % kWarpgroup == 0 && panels > 0;
  if (loads) {
    init_barrier(&shared.full[worker], 1);
    fence_proxy_async();
    load_weights<End, kTokens>(t, share, column, panel, &shared.full[worker]);
  }
  const Unit first{kCluster ? warp * t.splits + rank : warp};
  const auto unit_of = [&](int32_t i) { return Unit{first.index + i * kWarps * (kCluster ? t.splits : 1)}; };
  const int32_t tile = column * kTiles + first.tile();
  const auto is_own = [&](int32_t i) { return tile < t.tiles && unit_of(i).index < kTokens; };
  const End made(p, tile);
  __syncthreads();
  quire::cuda::griddep_wait();

  if (loads) tma_load(share + t.own * kOutputs * kLineBytes, &t.in, &shared.full[worker], 0, first_token, panel);
  const int32_t live = live_rows_of(p), factor_token = warp * kUnits;
  const Several<Factor, kUnits> factors(
      [&](int32_t i) { return Factor(p, factor_token < kTokens ? first_token + factor_token + i : p.room); });
  const Several<End, kUnits> ends([&](int32_t i) {
    End end = made;
    if (is_own(i)) end.load(p, first_token + unit_of(i).token());
    return end;
  });
  if (p.squares && factor_token < kTokens) {
#pragma unroll
    for (int32_t i = 0; i < kUnits; ++i) {
      const float factor = factors[i].value(p);
      if (lane == 0) shared.factors[factor_token + i] = factor;
    }
  }
  float sums[kTokens / 2] = {};
  if (panels > 0) {
    wait(&shared.full[worker], 0);
    multiply_share<kTokens>(sums, share, t.own, panels);
  }
  __syncthreads();  // nobody reads what is multiplied any more
  if (worker < t.workers) {
    auto* to = reinterpret_cast<float*>(memory + worker * Share<kTokens>::kSumsBytes) + lane;
#pragma unroll
    for (int32_t i = 0; i < kTokens / 2; ++i) to[(i / 4 * kTiles * 4 + warp % 4 * 4 + i % 4) * 32] = sums[i];
  }
  if (kCluster)
    cluster_sync();
  else
    __syncthreads();
#pragma unroll
  for (int32_t i = 0; i < kUnits; ++i) {
    if (!is_own(i)) continue;
    const Unit unit = unit_of(i);
    const float low = add_up<kTokens, kCluster>(t, memory, unit.place(0));
    const float high = add_up<kTokens, kCluster>(t, memory, unit.place(1));
    const float factor = p.squares ? shared.factors[unit.token()] : 1;
    ends[i].store(p, low * factor, high * factor, first_token + unit.token() < live);
  }
  if (kCluster) cluster_sync();  // until nobody reads this block's sums
}

// --- gates and ups of many rows

// Nothing is shared among warpgroups: each has 64 outputs of all tokens of its block, whose sums go from its registers
// to memory. The rows come in rounds, of which the first are multiplied while the others arrive.
constexpr int32_t kWideWorkers = 2, kWideThreads = kWideWorkers * kWarpgroup, kWideWarps = kWideThreads / 32;
constexpr int32_t kWideTokens = 64, kWideTiles = kWideWorkers * kTiles;  // of a block
constexpr int32_t kRoundPanels = 3, kMostRounds = 3;

struct WideProduct {
  CUtensorMap weights, in;
  Product product;
  int32_t tiles;   // of 16 weight rows
  int32_t panels;  // each 64 inputs
};

struct WideShared {
  float factors[kWideTokens];
  Barrier weights, rows[kMostRounds];
};

// grid: 128 weight rows each; groups of kWideTokens tokens
template <class End>
__global__ void __launch_bounds__(kWideThreads, 1) wide_tiles_kernel(const __grid_constant__ WideProduct t) {
  extern __shared__ __align__(1024) std::byte memory[];
  __shared__ WideShared shared;
  constexpr int32_t kFactors = kWideTokens / kWideWarps;  // of a warp
  using Factor = RowFactor<2>;
  quire::cuda::griddep_launch_dependents();
  const Product& p = t.product;
  const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32_t worker = __shfl_sync(~0u, warp / 4, 0);  // the compiler sees that all of a warp have the same
  const int32_t first_tile = static_cast<int32_t>(blockIdx.x) * kWideTiles;
  const int32_t first_token = static_cast<int32_t>(blockIdx.y) * kWideTokens;
  const int32_t eight_bytes = t.panels * kEightBytes;
  const uint32_t weights = shared_address(memory), rows = weights + 2 * kWideTiles * eight_bytes;
  constexpr int32_t kRoundBytes = kRoundPanels * kWideTokens * kLineBytes;
  if (threadIdx.x == 0) {
    init_barrier(&shared.weights, 1);
    for (Barrier& round : shared.rows) init_barrier(&round, 1);
    fence_proxy_async();
    arrive_expect_tx(&shared.weights, 2 * kWideTiles * eight_bytes);
#pragma unroll 1
    for (int32_t tile = 0; tile < kWideTiles; ++tile) {
      const RowPair pair = End(p, first_tile + tile).rows(0);
      tma_load(weights + 2 * tile * eight_bytes, &t.weights, &shared.weights, 0, pair.low, 0);
      tma_load(weights + (2 * tile + 1) * eight_bytes, &t.weights, &shared.weights, 0, pair.high, 0);
    }
  }
  const int32_t tile = first_tile + warp;  // of this warp
  const End made(p, tile);
  __syncthreads();
  quire::cuda::griddep_wait();

  if (threadIdx.x == 0)
    for (int32_t round = 0; round * kRoundPanels < t.panels; ++round) {
      arrive_expect_tx(&shared.rows[round], kRoundBytes);
      tma_load(rows + round * kRoundBytes, &t.in, &shared.rows[round], 0, first_token, round * kRoundPanels);
    }
  const int32_t live = live_rows_of(p);
  if (p.squares) {
    const Several<Factor, kFactors> factors([&](int32_t i) { return Factor(p, first_token + warp * kFactors + i); });
#pragma unroll
    for (int32_t i = 0; i < kFactors; ++i) {
      const float factor = factors[i].value(p);
      if (lane == 0) shared.factors[warp * kFactors + i] = factor;
    }
  }
  __syncthreads();
  float sums[kWideTokens / 2] = {};
  const uint64_t own = weights_descriptor(weights + 2 * worker * kTiles * eight_bytes, eight_bytes);
  const uint64_t tokens = wgmma_descriptor(rows);
  wait(&shared.weights, 0);
#pragma unroll 1
  for (int32_t panel = 0; panel < t.panels; ++panel) {
    if (panel % kRoundPanels == 0) wait(&shared.rows[panel / kRoundPanels], 0);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < kPanelColumns / 16; ++k)
      wgmma_weights<kWideTokens>(sums, advance_descriptor(own, panel * kEightBytes + k * 32),
                                 advance_descriptor(tokens, panel * kWideTokens * kLineBytes + k * 32), panel + k > 0);
    wgmma_commit();
  }
  wgmma_wait<0>();
  if (tile >= t.tiles) return;
#pragma unroll
  for (int32_t i = 0; i < kWideTokens / 4; ++i) {
    const int32_t token = i / 2 * kEight + lane % 4 * 2 + i % 2;
    const int32_t at = i / 2 * 4 + i % 2;
    const float factor = p.squares ? shared.factors[token] : 1;
    End end = made;
    end.load(p, first_token + token);
    end.store(p, sums[at] * factor, sums[at + 2] * factor, first_token + token < live);
  }
}

// --- the host's side

constexpr int32_t parts_of(int32_t whole, int32_t part) { return (whole + part - 1) / part; }

// How a product is dealt out.
struct Deal {
  int32_t tokens, splits, panels, own, workers;

  int32_t shared() const {
    const int32_t share = own * (kOutputs + tokens) * kLineBytes, sums = kOutputs * tokens * 4;
    return workers * std::max(share, sums);
  }
  int32_t blocks(const Product& p) const {
    return parts_of(p.weight_rows(), kOutputs) * splits * parts_of(p.room, tokens);
  }
};

Deal deal_of(int32_t inputs, int32_t tokens, int32_t splits) {
  const int32_t panels = parts_of(inputs / kPanelColumns, splits), own = parts_of(panels, kWorkers);
  return {tokens, splits, panels, own, parts_of(panels, own)};
}

// As few tokens a block as leave a multiprocessor to each, or else as many as fit; blocks of 64 have as many splits as
// that leaves room for. Where 33 to 64 rows are normed here, blocks of 16 tokens take less time, two on a
// multiprocessor.
Deal deal_of(const Product& p) {
  const bool in_pairs = p.squares && p.room > 32 && p.room <= 64;
  Deal last{};
  for (const int32_t tokens : {8, 16, 32, 64}) {
    if (in_pairs && tokens < 16) continue;
    const int32_t places = in_pairs && tokens == 16 ? 2 * multiprocessors() : multiprocessors();
    for (int32_t splits = 1; splits <= kMostSplits; splits += tokens < 64 ? splits : 1) {
      const Deal deal = deal_of(p.inputs, tokens, splits);
      if (deal.shared() > (places > multiprocessors() ? kMostShared / 2 : kMostShared)) continue;
      if (deal.blocks(p) > places) {
        if (last.tokens == tokens) return last;
        last = deal;
        break;
      }
      if (tokens < 64) return deal;
      last = deal;
    }
  }
  return last;
}

template <int32_t kTokens, bool kCluster, class End>
void launch_tiles(const Product& p, const Deal& deal, cudaStream_t stream) {
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(tiles_kernel<kTokens, kCluster, End>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kMostShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const TilesProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kEight, deal.own),
                       .in = panels_map(p.in, p.room, p.inputs, p.in_stride, kTokens, deal.own),
                       .product = p,
                       .tiles = p.weight_rows() / static_cast<int32_t>(kRowGroup),
                       .splits = deal.splits,
                       .panels = deal.panels,
                       .workers = deal.workers,
                       .own = deal.own};
  const dim3 grid(static_cast<uint32_t>(parts_of(p.weight_rows(), kOutputs) * deal.splits),
                  static_cast<uint32_t>(parts_of(p.room, kTokens)));
  quire::cuda::launch_after(tiles_kernel<kTokens, kCluster, End>, grid, kThreads, static_cast<size_t>(deal.shared()),
                            stream, "matmul", t, kCluster ? deal.splits : 0);
}

constexpr int32_t wide_shared(int32_t panels) {
  return panels * 2 * kWideTiles * kEightBytes +
         parts_of(panels, kRoundPanels) * kRoundPanels * kWideTokens * kLineBytes;
}

bool suits_wide(const Product& p) {
  const int32_t panels = p.inputs / static_cast<int32_t>(kPanelColumns);
  return p.room > kMostHundredRows && p.join == PackedMatrix::Join::gate_and_up &&
         panels <= kMostRounds * kRoundPanels && wide_shared(panels) <= kMostShared;
}

void launch_wide(const Product& p, cudaStream_t stream) {
  using End = RowsEnd<PackedMatrix::Join::gate_and_up>;
  static const bool allowed = [] {
    check_cuda(cudaFuncSetAttribute(wide_tiles_kernel<End>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
               "no shared memory for products");
    return true;
  }();
  (void)allowed;
  const int32_t panels = p.inputs / static_cast<int32_t>(kPanelColumns);
  const WideProduct t{.weights = panels_map(p.weights, p.weight_rows(), p.inputs, p.inputs, kEight, panels),
                      .in = panels_map(p.in, p.room, p.inputs, p.in_stride, kWideTokens, kRoundPanels),
                      .product = p,
                      .tiles = p.weight_rows() / static_cast<int32_t>(kRowGroup),
                      .panels = panels};
  const dim3 grid(static_cast<uint32_t>(parts_of(t.tiles, kWideTiles)),
                  static_cast<uint32_t>(parts_of(p.room, kWideTokens)));
  quire::cuda::launch_after(wide_tiles_kernel<End>, grid, kWideThreads, static_cast<size_t>(wide_shared(panels)),
                            stream, "matmul", t);
}

template <int32_t kTokens, class End>
void launch_by_splits(const Product& p, const Deal& deal, cudaStream_t stream) {
  (deal.splits > 1 ? launch_tiles<kTokens, true, End> : launch_tiles<kTokens, false, End>)(p, deal, stream);
}

template <class End>
void launch_by_tokens(const Product& p, cudaStream_t stream) {
  const Deal deal = deal_of(p);
  if (deal.tokens == 8) return launch_by_splits<8, End>(p, deal, stream);
  if (deal.tokens == 16) return launch_by_splits<16, End>(p, deal, stream);
  if (deal.tokens == 32) return launch_by_splits<32, End>(p, deal, stream);
  launch_by_splits<64, End>(p, deal, stream);
}

}  // namespace

bool suits_tiles(int64_t inputs) {
  return has_wgmma() && inputs % kPanelColumns == 0 &&
         deal_of(static_cast<int32_t>(inputs), 32, kMostSplits).shared() <= kMostShared;
}

void multiply_tiles(const Product& p, cudaStream_t stream) {
  if (p.has_heads) return launch_by_tokens<HeadsEnd>(p, stream);
  if (p.join == PackedMatrix::Join::stack) return launch_by_tokens<RowsEnd<PackedMatrix::Join::stack>>(p, stream);
  if (suits_wide(p)) return launch_wide(p, stream);
  launch_by_tokens<RowsEnd<PackedMatrix::Join::gate_and_up>>(p, stream);
}

}  // namespace quire::ops::cuda
