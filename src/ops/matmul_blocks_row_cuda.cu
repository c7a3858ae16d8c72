// One row times quantised weights whose blocks have 256 elements, with the bits of ref::matmul: what a decode step of
// one sequence does. The weights are the M side of int8 tensor cores; the columns of the N side, which other products
// have rows for, are the eight blocks of 32 inputs of a group:
//
//   m16n8   sum of output o and block b of the group: products of block b are given activations in column b alone, and
//           the eight are added up in one accumulator. So a lane has two outputs of two blocks, nothing twice.
//
//   kMultipliers warps   multiply: each takes two groups at a time of the block's units (16 outputs, two tiles) in turn
//                        and makes terms of them, what is to be multiplied and added for each output
//   one warp             adds the terms up in ascending order, a lane an output, two units at a time, and finishes
//
// Weights come through a ring of shared memory of each warp's own by bulk copies, filled before the kernel before has
// ended.
#include <algorithm>

#include "base/hopper.cuh"
#include "ops/fill_activations.cuh"
#include "ops/matmul_blocks_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kMultipliers = 8, kRowThreads = (kMultipliers + 1) * kWarp;
constexpr int32_t kUnitOutputs = 2 * kTileOutputs, kGroupBlocks = 8;
constexpr int32_t kStepGroups = 2, kStepBlocks = kStepGroups * kGroupBlocks;
constexpr int32_t kMostStages = 12;
constexpr int64_t kRowShared = 112 << 10;  // two such blocks fit a multiprocessor

struct RowProduct {
  BlockProduct product;
  int32_t groups, steps;  // of a tile; a step is two groups, the last one may be one
  int32_t stages;
};

// Two fused products and sums for each block of an output: sum = fma(x, y, sum); sum = fma(z, w, sum). The stride keeps
// lanes that read or write at once in banks of their own.
constexpr int32_t kTermStride = kStepBlocks + 1;  // float4
struct RowMemory {
  Barrier full[kMultipliers][kMostStages], terms_full[kMultipliers], terms_empty[kMultipliers];
  float4 terms[kMultipliers][kUnitOutputs][kTermStride];
};
static_assert(sizeof(RowMemory) % 16 == 0);

// The row, in shared memory.
struct RowInput {
  float* scale;    // [blocks]
  float* sum;      // [blocks] scale * sum of q
  int32_t* sums;   // [blocks, 2] of q, where the row is quantised here
  std::byte* q;    // [blocks, 32]
  float4* normed;  // [blocks, 8] of a row that is normed here
};
int64_t row_input_bytes(const BlockProduct& p) {
  const auto block_bytes = static_cast<int64_t>(sizeof(float) * 4 + 32 + (p.norm ? 32 * sizeof(float) : 0));
  return p.blocks * block_bytes;
}

// --- single instructions

__device__ void bulk_load([[maybe_unused]] uint32_t to, [[maybe_unused]] const std::byte* from,
                          [[maybe_unused]] int32_t bytes, [[maybe_unused]] Barrier* barrier) {
#if QUIRE_HOPPER
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(quire::cuda::shared_address(barrier))
               : "memory");
#endif
}
__device__ void add_16_unsigned(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ void add_16(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
}
__device__ void add_32(int32_t (&d)[4], uint2 a_first, uint2 a_second, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a_first.x), "r"(a_second.x), "r"(a_first.y), "r"(a_second.y), "r"(b0), "r"(b1));
}

// --- the block's share

// Where a unit lies.
struct UnitPlace {
  int32_t part, in_part;
};
__device__ UnitPlace place_of(const BlockProduct& p, int32_t unit) {
  UnitPlace place{0, unit};
  while (!p.pairs && place.in_part >= p.parts[place.part].units) place.in_part -= p.parts[place.part++].units;
  return place;
}

// Units of a block lie a grid apart; two of them take turns, group by group.
__device__ int32_t unit_count(const BlockProduct& p) {
  return (p.units - static_cast<int32_t>(blockIdx.x) + static_cast<int32_t>(gridDim.x) - 1) /
         static_cast<int32_t>(gridDim.x);
}
__device__ int32_t unit_number(int32_t i) { return static_cast<int32_t>(blockIdx.x + i * gridDim.x); }

// A multiplier's steps: of two units every eighth, so that it stays with one of them; of a last one alone too.
class RowSteps {
 public:
  __device__ RowSteps(const RowProduct& r, int32_t multiplier) : r_(r), units_(unit_count(r.product)), at_(multiplier) {
    begin_pair();
  }
  __device__ bool more() const { return pair_ < units_; }
  __device__ void advance() {
    at_ += kMultipliers;
    step_ += stride_;
    if (step_ >= r_.steps) begin_pair();
  }
  __device__ int32_t first_block() const { return step_ * kStepBlocks; }
  __device__ int32_t bytes() const {
    return min(kStepGroups, r_.groups - step_ * kStepGroups) * group_bytes_;
  }  // a tile's
  __device__ BlockType type() const { return type_; }
  __device__ const std::byte* first() const { return first_ + step_ * kStepGroups * group_bytes_; }
  __device__ const std::byte* second() const { return second_ + step_ * kStepGroups * group_bytes_; }

 private:
  __device__ void begin_pair() {
    for (;; pair_ += 2) {
      if (!more()) return;
      const bool has_two = pair_ + 1 < units_;
      const int32_t span = has_two ? 2 * r_.steps : r_.steps;
      if (at_ < span) return begin_unit(pair_ + (has_two ? at_ & 1 : 0), has_two);
      at_ -= span;
    }
  }
  __device__ void begin_unit(int32_t i, bool has_two) {
    const BlockProduct& p = r_.product;
    const UnitPlace place = place_of(p, unit_number(i));
    const BlockPart& part = p.parts[place.part];
    step_ = has_two ? at_ >> 1 : at_;
    stride_ = has_two ? kMultipliers / 2 : kMultipliers;
    type_ = part.type;
    group_bytes_ = part.group_bytes;
    first_ = part.tiles + place.in_part * part.tile_bytes * (p.pairs ? 1 : 2);
    second_ = p.pairs ? p.parts[1].tiles + place.in_part * part.tile_bytes : first_ + part.tile_bytes;
  }

  const RowProduct& r_;
  int32_t units_, pair_ = 0, at_, step_ = 0, stride_ = 0, group_bytes_ = 0;
  BlockType type_ = BlockType::q4_k;
  const std::byte *first_ = nullptr, *second_ = nullptr;
};

// --- from weights to terms

template <BlockType T>
__device__ void add_block(int32_t (&sums)[2][4], const Quad<T> (&weights)[2], int32_t i, uint32_t b0, uint32_t b1) {
  if constexpr (T == BlockType::q4_k) {  // the upper ones are left where they are, 16 times as large
    constexpr uint32_t kBelow = 0x0f0f0f0f, kAbove = 0xf0f0f0f0;
    const uint32_t first = weights[0].nibbles(i), second = weights[1].nibbles(i);
    add_16_unsigned(sums[0], first & kBelow, second & kBelow, b0);
    add_16_unsigned(sums[1], first & kAbove, second & kAbove, b1);
  } else {
    const uint2 first = weights[0].words(i), second = weights[1].words(i);
    if constexpr (T == BlockType::q6_k) {
      add_16(sums[0], first.x, second.x, b0);
      add_16(sums[1], first.y, second.y, b1);
    } else {
      add_32(sums[0], first, second, b0, b1);
    }
  }
}

// What the lane has of a tile: `head` is of its group, the sums are those of its output and two blocks.
template <BlockType T>
__device__ void terms_of_tile(float4 (&terms)[2], const std::byte* head, const int32_t (&first)[2],
                              const int32_t (&second)[2], float2 scale, float2 sum) {
  const int32_t output = threadIdx.x % kWarp / 4, pair = threadIdx.x % 4;
  const float own_scale[2] = {scale.x, scale.y}, own_sum[2] = {sum.x, sum.y};
  constexpr float kTwoTo23 = 8388608.0f;
  if constexpr (T == BlockType::q6_k) {
    const float d = __half2float(*reinterpret_cast<const __half*>(head + output * 2));
    const uint32_t scales = load_4(head + 16 + output * 16 + pair * 4);
    constexpr float kUnit = 1.0f / static_cast<float>(1 << Quad<T>::kShift);
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) {
      const auto number = [](int32_t bits) { return __fmaf_rn(__int_as_float(bits), kUnit, -kMagicNumber * kUnit); };
      const auto factor = [&](uint32_t byte) {
        return __fmul_rn(__fmul_rn(d, __fsub_rn(above_two_to_23(scales, byte), kTwoTo23 + 128.0f)), own_scale[e]);
      };
      terms[e] = {number(first[e]), factor(2 * e), number(second[e]), factor(2 * e + 1)};
    }
  } else {
    const float2 d = floats_of(load_4(head + output * 4));
    const uint32_t bytes = load_4(head + 32 + output * 16 + pair * 4);
    const float2 below = {__fmul_rn(d.x, -kTwoTo23), __fmul_rn(d.y, -kTwoTo23)};
#pragma unroll
    for (int32_t e = 0; e < 2; ++e) {
      float number;
      if constexpr (T == BlockType::q4_k)
        number =
            __fsub_rn(__fmaf_rn(__int_as_float(second[e]), 0.0625f, __int_as_float(first[e])), kMagicNumber * 1.0625f);
      else
        number = __fsub_rn(__int_as_float(first[e]), kMagicNumber);
      const float factor = __fmaf_rn(d.x, above_two_to_23(bytes, e), below.x);
      const float least = __fmaf_rn(d.y, above_two_to_23(bytes, 2 + e), below.y);
      terms[e] = {number, __fmul_rn(factor, own_scale[e]), -least, own_sum[e]};
    }
  }
}

// A group of both tiles; its first block is `block`.
template <BlockType T>
__device__ void terms_of_group(float4 (&terms)[2][2], const std::byte* const (&tiles)[2], int32_t block,
                               const RowInput& in) {
  constexpr DeviceLayout kLayout = device_layout(T);
  const int32_t own = threadIdx.x % kWarp / 4, c = threadIdx.x % 4;
  const std::byte* q = in.q + (block + own) * 32;
  uint2 b;
  if constexpr (T == BlockType::q6_k)
    b = {load_4(q + 4 * c), load_4(q + 16 + 4 * c)};
  else
    b = load_8(q + 8 * c);
  int32_t sums[2][4] = {{kMagic, kMagic, kMagic, kMagic}, {kMagic, kMagic, kMagic, kMagic}};
#pragma unroll
  for (int32_t quad = 0; quad < kLayout.quads; ++quad) {
    const int32_t at = kLayout.head_bytes + quad * kLayout.quad_bytes();
    const Quad<T> weights[2] = {Quad<T>(tiles[0] + at), Quad<T>(tiles[1] + at)};
#pragma unroll
    for (int32_t i = 0; i < kQuadBlocks; ++i) {
      const bool mine = own == quad * kQuadBlocks + i;
      add_block<T>(sums, weights, i, mine ? b.x : 0, mine ? b.y : 0);
    }
  }
  const float2 scale = *reinterpret_cast<const float2*>(in.scale + block + 2 * c);
  const float2 sum = *reinterpret_cast<const float2*>(in.sum + block + 2 * c);
#pragma unroll
  for (int32_t x = 0; x < 2; ++x)
    terms_of_tile<T>(terms[x], tiles[x], {sums[0][2 * x], sums[0][2 * x + 1]}, {sums[1][2 * x], sums[1][2 * x + 1]},
                     scale, sum);
}

// Of both groups, whether the second is there or not: nobody adds up what is not. Tiles lie `bytes` apart.
struct StepTerms {
  float4 of[kStepGroups][2][2];  // of both tiles, the lane's two blocks
};
template <BlockType T>
__device__ StepTerms terms_of_step(const std::byte* slot, int32_t bytes, int32_t block, const RowInput& in) {
  StepTerms terms;
#pragma unroll
  for (int32_t group = 0; group < kStepGroups; ++group) {
    const std::byte* first = slot + group * device_layout(T).group_bytes();
    terms_of_group<T>(terms.of[group], {first, first + bytes}, block + group * kGroupBlocks, in);
  }
  return terms;
}

__device__ StepTerms terms_of_type(BlockType type, const std::byte* slot, int32_t bytes, int32_t block,
                                   const RowInput& in) {
  if (type == BlockType::q4_k) return terms_of_step<BlockType::q4_k>(slot, bytes, block, in);
  if (type == BlockType::q5_k) return terms_of_step<BlockType::q5_k>(slot, bytes, block, in);
  return terms_of_step<BlockType::q6_k>(slot, bytes, block, in);
}

// --- the warps' roles

class Multiplier {
 public:
  __device__ Multiplier(const RowProduct& r, RowMemory& memory, std::byte* rings)
      : r_(r),
        memory_(memory),
        warp_(threadIdx.x / kWarp),
        ring_(rings + warp_ * r.stages * r.product.slot_bytes * kStepGroups),
        next_(r, warp_) {}

  // The barriers and the first weights, which nobody on the stream writes.
  __device__ void begin() {
    if (elect_one()) {
#pragma unroll 1
      for (int32_t stage = 0; stage < r_.stages; ++stage) init_barrier(&memory_.full[warp_][stage], 1);
      init_barrier(&memory_.terms_full[warp_], 1);
      init_barrier(&memory_.terms_empty[warp_], 1);
      fence_proxy_async();
    }
    __syncwarp();
#pragma unroll 1
    for (int32_t stage = 0; stage < r_.stages; ++stage) fetch(stage);
  }

  __device__ void run(const RowInput& in) {
    const int32_t lane = threadIdx.x % kWarp;
    PipelineState place;
    uint32_t phase = 0;
    for (RowSteps steps(r_, warp_); steps.more(); steps.advance(), phase ^= 1) {
      wait(&memory_.full[warp_][place.stage], place.phase);
      const StepTerms terms = terms_of_type(steps.type(), ring_ + place.stage * r_.product.slot_bytes * kStepGroups,
                                            steps.bytes(), steps.first_block(), in);
      __syncwarp();
      fetch(place.stage);
      place.next(r_.stages);
      wait(&memory_.terms_empty[warp_], phase ^ 1);
#pragma unroll
      for (int32_t group = 0; group < kStepGroups; ++group)
#pragma unroll
        for (int32_t x = 0; x < 2; ++x)
#pragma unroll
          for (int32_t e = 0; e < 2; ++e)
            memory_.terms[warp_][x * kTileOutputs + lane / 4][group * kGroupBlocks + lane % 4 * 2 + e] =
                terms.of[group][x][e];
      __syncwarp();
      if (lane == 0) arrive(&memory_.terms_full[warp_]);
    }
  }

 private:
  __device__ void fetch(int32_t stage) {
    if (!next_.more()) return;
    if (elect_one()) {
      const int32_t bytes = next_.bytes();
      const uint32_t to = quire::cuda::shared_address(ring_ + stage * r_.product.slot_bytes * kStepGroups);
      Barrier* full = &memory_.full[warp_][stage];
      arrive_expect_tx(full, 2 * bytes);
      bulk_load(to, next_.first(), bytes, full);
      bulk_load(to + bytes, next_.second(), bytes, full);
    }
    next_.advance();
  }

  const RowProduct& r_;
  RowMemory& memory_;
  int32_t warp_;
  std::byte* ring_;
  RowSteps next_;
};

// The output of a lane of the adding warp: what is added to its sum, and where it goes.
class RowOutput {
 public:
  __device__ RowOutput(const BlockProduct& p, int32_t unit, bool exists) : p_(p) {
    const UnitPlace place = place_of(p, unit);
    const BlockPart& part = p.parts[place.part];
    const int32_t in_unit = threadIdx.x % kUnitOutputs;
    output_ = p.pairs ? place.in_part * kTileOutputs + in_unit % kTileOutputs : place.in_part * kUnitOutputs + in_unit;
    is_up_ = p.pairs && in_unit >= kTileOutputs;
    exists_ = exists && output_ < part.outputs;
    column_ = part.first_output + output_ + (is_up_ ? part.outputs : 0);
    if (exists_ && p.bias) bias_ = p.bias[column_];
    if (exists_ && p.store == Store::add) old_ = p.out[column_];
  }
  __device__ void put(float sum) const {
    if (p_.bias) sum = __fadd_rn(sum, bias_);
    if (p_.pairs) {
      const float up = __shfl_down_sync(kAllLanes, sum, kTileOutputs);
      if (exists_ && !is_up_) p_.out[output_] = __fmul_rn(exact_silu(sum), up);
      return;
    }
    sum = __fmul_rn(sum, p_.out_scale);
    if (exists_) p_.out[column_] = p_.store == Store::add ? __fadd_rn(old_, sum) : sum;
  }

 private:
  const BlockProduct& p_;
  int32_t output_, column_;
  bool is_up_, exists_;
  float bias_ = 0, old_ = 0;
};

// `writes`: the row is alive.
__device__ void add_up(const RowProduct& r, RowMemory& memory, bool writes) {
  const int32_t lane = threadIdx.x % kWarp, units = unit_count(r.product);
  int32_t next = 0;  // multiplier
  uint32_t phase = 0;
  for (int32_t pair = 0; pair < units; pair += 2) {
    const bool two = pair + 1 < units, exists = two || lane < kUnitOutputs;
    const int32_t own = two ? lane / kUnitOutputs : 0;
    const RowOutput output(r.product, unit_number(pair + own), exists && writes);
    float sum = 0;
#pragma unroll 1
    for (int32_t group = 0; group < r.groups; group += kStepGroups) {
      const int32_t from = next + own;
      wait(&memory.terms_full[from], phase);
#pragma unroll
      for (int32_t which = 0; which < kStepGroups; ++which) {
        if (group + which == r.groups) break;
        float4 terms[kGroupBlocks];
#pragma unroll
        for (int32_t block = 0; block < kGroupBlocks; ++block)
          terms[block] = memory.terms[from][lane % kUnitOutputs][which * kGroupBlocks + block];
#pragma unroll
        for (int32_t block = 0; block < kGroupBlocks; ++block)
          sum = __fmaf_rn(terms[block].z, terms[block].w, __fmaf_rn(terms[block].x, terms[block].y, sum));
      }
      __syncwarp();
      if (exists && lane % kUnitOutputs == 0) arrive(&memory.terms_empty[from]);
      next += two ? 2 : 1;
      if (next == kMultipliers) {
        next = 0;
        phase ^= 1;
      }
    }
    output.put(sum);
  }
}

// --- the kernel

// All is asked for before any of it is waited for. A row that is not alive is brought too, and nobody reads the sums.
__device__ void bring_row(const BlockProduct& p, const RowInput& to) {
  for (int32_t i = threadIdx.x; i < 2 * p.blocks; i += kRowThreads)
    quire::cuda::cp_async(quire::cuda::shared_address(to.q + 16 * i), p.q + 16 * i);
  quire::cuda::cp_async_commit();
  for (int32_t i = threadIdx.x; i < p.blocks; i += kRowThreads) {
    const auto sums = reinterpret_cast<const int2*>(p.sums)[i];
    const float scale = p.scale[i];
    to.scale[i] = scale;
    to.sum[i] = __fmul_rn(scale, static_cast<float>(sums.x + sums.y));
  }
  quire::cuda::cp_async_wait<0>();
}

// What the row is multiplied by before it meets the norm's weights; the row is in `normed` then.
__device__ float norm_factor(const BlockProduct& p, const RowInput& to) {
  __shared__ float factor;
  const auto* row = reinterpret_cast<const float4*>(p.row);
  for (int32_t i = threadIdx.x; i < p.blocks * 8; i += kRowThreads)
    quire::cuda::cp_async(quire::cuda::shared_address(to.normed + i), row + i);
  quire::cuda::cp_async_commit();
  quire::cuda::cp_async_wait<0>();
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const float scale = rms_scale(reinterpret_cast<const float*>(to.normed), p.blocks * 32, p.norm_eps);
    if (threadIdx.x == 0) factor = scale;
  }
  __syncthreads();
  return factor;
}

// As rms_norm and quantise do it, with their bits.
__device__ void quantise_row(const BlockProduct& p, const RowInput& to) {
  constexpr int32_t kBatch = 4;  // on their way at a time
  const float factor = p.norm ? norm_factor(p, to) : 1;
  const float4* from = p.norm ? to.normed : reinterpret_cast<const float4*>(p.row);
  const auto* weights = reinterpret_cast<const float4*>(p.norm);
  const int32_t fours = p.blocks * 8;
#pragma unroll 1
  for (int32_t first = threadIdx.x; first - static_cast<int32_t>(threadIdx.x) % kWarp < fours;
       first += kBatch * kRowThreads) {
    float4 x[kBatch];
#pragma unroll
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = first + k * kRowThreads;
      x[k] = i < fours ? from[i] : float4{};
      if (weights && i < fours) x[k] = normed(x[k], factor, weights[i]);
    }
#pragma unroll
    for (int32_t k = 0; k < kBatch; ++k) {
      const int32_t i = first + k * kRowThreads;
      quantise_block(x[k], i * kFour, i < fours, reinterpret_cast<int8_t*>(to.q), to.scale, to.sums);
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < p.blocks; i += kRowThreads)
    to.sum[i] = __fmul_rn(to.scale[i], static_cast<float>(to.sums[2 * i] + to.sums[2 * i + 1]));
}

// grid: blocks that share the units
__global__ void __launch_bounds__(kRowThreads, 2) blocks_row_kernel(const __grid_constant__ RowProduct r) {
  extern __shared__ uint4 row_kernel_memory[];
  RowMemory& memory = *reinterpret_cast<RowMemory*>(row_kernel_memory);
  const BlockProduct& p = r.product;
  float* numbers = reinterpret_cast<float*>(&memory + 1);
  const RowInput in{.scale = numbers,
                    .sum = numbers + p.blocks,
                    .sums = reinterpret_cast<int32_t*>(numbers + 2 * p.blocks),
                    .q = reinterpret_cast<std::byte*>(numbers + 4 * p.blocks),
                    .normed = reinterpret_cast<float4*>(numbers + 12 * p.blocks)};
  std::byte* rings = in.q + p.blocks * 32 + (p.norm ? p.blocks * 128 : 0);
  griddep_launch_dependents();
  const bool multiplies = threadIdx.x < kMultipliers * kWarp;
  Multiplier multiplier(r, memory, rings);
  if (multiplies) multiplier.begin();
  griddep_wait();
  const bool live = *reinterpret_cast<const volatile int32_t*>(p.live_rows) > 0;
  if (p.row)
    quantise_row(p, in);
  else
    bring_row(p, in);
  __syncthreads();
  if (multiplies)
    multiplier.run(in);
  else
    add_up(r, memory, live);
}

bool is_hopper() {
  static const bool found = [] {
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "no device");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "no version");
    return major == 9;
  }();
  return found;
}

int64_t row_stages(const BlockProduct& p) {
  const int64_t fixed = int64_t{sizeof(RowMemory)} + row_input_bytes(p);
  return std::min<int64_t>(kMostStages, (kRowShared - fixed) / (int64_t{kMultipliers} * kStepGroups * p.slot_bytes));
}

}  // namespace

bool suits_blocks_row(const BlockProduct& p) {
  if (p.room != 1 || p.halves || !is_hopper() || row_stages(p) < 1) return false;
  return std::all_of(p.parts, p.parts + kMostParts, [](const BlockPart& part) {
    return part.groups == 0 || device_layout(part.type).group_blocks() == kGroupBlocks;
  });
}

void multiply_blocks_row(const BlockProduct& p, cudaStream_t stream) {
  const int32_t groups = p.parts[0].groups;
  const RowProduct r{.product = p,
                     .groups = groups,
                     .steps = (groups + kStepGroups - 1) / kStepGroups,
                     .stages = static_cast<int32_t>(row_stages(p))};
  const int64_t shared =
      int64_t{sizeof(RowMemory)} + row_input_bytes(p) + int64_t{r.stages} * kMultipliers * kStepGroups * p.slot_bytes;
  allow_shared(blocks_row_kernel, shared, "matmul");
  const auto blocks = static_cast<uint32_t>(std::min(p.units, 2 * multiprocessors()));
  launch_after(blocks_row_kernel, dim3(blocks), kRowThreads, static_cast<size_t>(shared), stream, "matmul", r);
}

}  // namespace quire::ops::cuda
