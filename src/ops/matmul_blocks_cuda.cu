// Products of quantised weights with the bits of ref::matmul: a warp takes 8 outputs and all inputs, so that each
// output has one accumulator that meets its blocks in ascending order. Rows of activations are the M side of int8
// tensor cores, outputs the N side:
//
//   m16n8k32   lane t has of the result rows t / 4 and t / 4 + 8, outputs t % 4 * 2 and t % 4 * 2 + 1
//
// Which eight inputs of a block a lane has does not matter to a sum of integers, so long as both sides agree
// (packed_blocks.h). Weights come through a ring of shared memory of the warp's own, filled before the kernel before
// has ended; the scales of the activations, which all warps read, are brought there once a block. An integer sum
// arrives as a float by way of its bits: the accumulators of the tensor cores begin at those of 1.5 * 2^23.
#include <cuda_fp16.h>

#include <algorithm>

#include "base/tensor_core.cuh"
#include "ops/by_row_cuda.cuh"
#include "ops/matmul_blocks_cuda.h"
#include "ops/matmul_task.h"
#include "ops/packed_blocks.h"

namespace quire::ops::cuda {
namespace {

using quire::cuda::bits_as;

constexpr int32_t kMostWarps = 16, kMostParts = 4;
constexpr int64_t kMostShared = 224 << 10;
constexpr int32_t kMagic = 0x4b400000;       // the bits of kMagicNumber
constexpr float kMagicNumber = 12582912.0f;  // 1.5 * 2^23
constexpr uint32_t kTwoTo23 = 0x4b000000;    // the bits of that number

// A warp copies 512 bytes at a time.
constexpr int32_t most_group_bytes() {
  int32_t most = 0;
  for (const BlockType type : kBlockTypes) most = std::max(most, device_layout(type).group_bytes());
  return most;
}
constexpr int32_t kCopyRounds = (most_group_bytes() + 511) / 512;

struct BlockPart {
  const std::byte* tiles;
  int64_t tile_bytes;
  int32_t groups, group_bytes;  // of a tile
  int32_t tile_count;
  int32_t outputs, first_output;
  BlockType type;
};

struct BlockProduct {
  BlockPart parts[kMostParts];
  bool pairs;  // units are tiles of a gate with those of its up, else tiles of all parts, part after part
  int32_t units;
  const int8_t* q;  // [rows << halves]
  const float* scale;
  const int32_t* sums;
  int64_t q_stride;
  int32_t blocks;  // of 32 inputs
  float* out;
  const float* bias;
  int64_t out_stride;
  float out_scale;
  Store store;
  int32_t halves;  // 1: a row of the product is two of the activations (q8x2), which are added
  const int32_t* live_rows;
  int32_t room;
  int32_t scale_stride;  // of a row of activations in shared memory, in float2
  int32_t slot_bytes;    // of a ring
};

// --- single instructions

__device__ uint4 load_16(const std::byte* shared) { return *reinterpret_cast<const uint4*>(shared); }

// Sums of 32 products, beginning at kMagic.
__device__ void multiply_32(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kMagic));
}
__device__ void multiply_16(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kMagic));
}

__device__ float2 floats_of(uint32_t halves) { return __half22float2(bits_as<__half2>(halves)); }

// 2^23 + byte `k` of the word.
__device__ float above_two_to_23(uint32_t word, uint32_t k) {
  return __uint_as_float(__byte_perm(word, kTwoTo23, 0x7440u | k));
}

// --- a quad of blocks

// The words of four weights that the lane has of block i: b0 and b1, times 2^shift_of<T>().
template <BlockType T>
struct Quad {
  static constexpr DeviceLayout kLayout = device_layout(T);
  static constexpr int32_t kBits = kLayout.bits;
  // Two's complement of fewer than 8 bits lies at the top of its byte.
  static constexpr int32_t kShift = kLayout.has_minimum ? 0 : 8 - kBits;

  __device__ explicit Quad(const std::byte* quad) {
    const int32_t lane = threadIdx.x % kWarp;
    low = load_16(quad + lane * 16);
    if constexpr (kBits == 8) more = load_16(quad + 512 + lane * 16);
    if constexpr (kBits == 5) more.x = *reinterpret_cast<const uint32_t*>(quad + 512 + lane * 4);
    if constexpr (kBits == 6) {
      const auto pairs = *reinterpret_cast<const uint2*>(quad + 512 + lane * 8);
      more.x = pairs.x;
      more.y = pairs.y;
    }
  }

  // i is known when this is compiled.
  __device__ void words(int32_t i, uint32_t& b0, uint32_t& b1) const {
    if constexpr (kBits == 8) {
      const uint4& two = i < 2 ? low : more;
      b0 = i % 2 ? two.z : two.x;
      b1 = i % 2 ? two.w : two.y;
    } else {
      const uint32_t nibbles = i == 0 ? low.x : i == 1 ? low.y : i == 2 ? low.z : low.w;
      constexpr uint32_t kNibbles = 0x0f0f0f0fu << kShift;
      b0 = kShift >= 0 ? nibbles << kShift & kNibbles : 0;
      b1 = (kShift < 4 ? nibbles >> (4 - kShift) : nibbles) & kNibbles;
      if constexpr (kBits == 5) {
        constexpr uint32_t kBit = 0x10101010u << kShift;
        b0 |= moved(more.x, 2 * i, 4 + kShift) & kBit;
        b1 |= moved(more.x, 2 * i + 1, 4 + kShift) & kBit;
      }
      if constexpr (kBits == 6) {
        constexpr uint32_t kPair = 0x30303030u << kShift;
        const uint32_t pairs = i < 2 ? more.x : more.y;
        b0 |= moved(pairs, i % 2 * 4, 4 + kShift) & kPair;
        b1 |= moved(pairs, i % 2 * 4 + 2, 4 + kShift) & kPair;
      }
    }
  }

 private:
  // Bit `from` of each byte to place `to`.
  __device__ static uint32_t moved(uint32_t word, int32_t from, int32_t to) {
    return from <= to ? word << (to - from) : word >> (from - to);
  }

  uint4 low, more;
};

// The scales and minima of a group's blocks for the lane's two outputs.
template <BlockType T>
struct Scales {
  static constexpr DeviceLayout kLayout = device_layout(T);
  static constexpr bool kOf256 = kLayout.quads == 2;

  __device__ explicit Scales(const std::byte* head) {
    const int32_t c = threadIdx.x % 4;
    if constexpr (!kOf256) {
      scale_words[0] = load_16(head + c * 16);
      if constexpr (kLayout.has_minimum) least_words = load_16(head + 64 + c * 16);
    } else if constexpr (T == BlockType::q6_k) {
      d = floats_of(*reinterpret_cast<const uint32_t*>(head + c * 4));
      scale_words[0] = load_16(head + 16 + c * 32);
      scale_words[1] = load_16(head + 32 + c * 32);
    } else {
      const auto both = *reinterpret_cast<const uint2*>(head + c * 8);
      d = floats_of(both.x);
      least = floats_of(both.y);
      scale_words[0] = load_16(head + 32 + c * 16);
      least_words = load_16(head + 96 + c * 16);
    }
  }

  // Of block `block` of the group, in Q6_K of its half; known when this is compiled.
  __device__ float2 scale(int32_t block, int32_t half) const {
    if constexpr (!kOf256) return floats_of(word(scale_words[0], block));
    if constexpr (T == BlockType::q6_k) {
      const uint32_t own = word(scale_words[block / 4], block % 4);
      constexpr float kOffset = 8388608.0f + 128.0f;
      return {__fmul_rn(d.x, __fsub_rn(above_two_to_23(own, half * 2), kOffset)),
              __fmul_rn(d.y, __fsub_rn(above_two_to_23(own, half * 2 + 1), kOffset))};
    }
    return products(d, scale_words[0], block);
  }
  // To be added where blocks have 32 elements, else to be taken off.
  __device__ float2 minimum(int32_t block) const {
    if constexpr (!kOf256) return floats_of(word(least_words, block));
    return products(least, least_words, block);
  }

 private:
  __device__ static uint32_t word(const uint4& words, int32_t i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  // factor * byte: exact, and so are both products in the fused one.
  __device__ static float2 products(float2 factor, const uint4& bytes, int32_t block) {
    const uint32_t own = word(bytes, block / 2);
    const uint32_t first = block % 2 * 2;
    return {__fmaf_rn(factor.x, above_two_to_23(own, first), __fmul_rn(factor.x, -8388608.0f)),
            __fmaf_rn(factor.y, above_two_to_23(own, first + 1), __fmul_rn(factor.y, -8388608.0f))};
  }

  uint4 scale_words[2], least_words;
  float2 d, least;
};

// --- activations

// kLaneRows rows of activations, 8 apart, and their scales in shared memory.
template <int32_t kLaneRows>
struct LaneRows {
  const int8_t* q[kLaneRows];
  const float2* scales[kLaneRows];  // (scale, scale * sum) of each block
};

// Four words of the M side for rows 16 m + t / 4 and + 8; a row that no lane asks for is zeros.
template <BlockType T, int32_t kLaneRows>
__device__ void load_rows(uint32_t (&a)[4], const LaneRows<kLaneRows>& rows, int32_t m, int32_t block) {
  const int32_t c = threadIdx.x % 4;
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    if (2 * m + i >= kLaneRows) {
      a[i] = a[2 + i] = 0;
      continue;
    }
    const int8_t* q = rows.q[2 * m + i] + block * 32;
    if constexpr (T == BlockType::q6_k) {
      a[i] = *reinterpret_cast<const uint32_t*>(q + 4 * c);
      a[2 + i] = *reinterpret_cast<const uint32_t*>(q + 16 + 4 * c);
    } else {
      const auto both = *reinterpret_cast<const uint2*>(q + 8 * c);
      a[i] = both.x;
      a[2 + i] = both.y;
    }
  }
}

// --- sums

template <BlockType T>
__device__ float number_of(int32_t sum) {
  constexpr float kUnit = 1.0f / static_cast<float>(1 << Quad<T>::kShift);
  return __fmaf_rn(__int_as_float(sum), kUnit, -kMagicNumber * kUnit);
}

// The lane's outputs of one row.
template <BlockType T>
__device__ void add_sums(float2& acc, int32_t sum_x, int32_t sum_y, float2 w_scale, float2 w_min, float2 in) {
  acc.x = __fmaf_rn(number_of<T>(sum_x), __fmul_rn(w_scale.x, in.x), acc.x);
  acc.y = __fmaf_rn(number_of<T>(sum_y), __fmul_rn(w_scale.y, in.x), acc.y);
  if constexpr (Scales<T>::kLayout.has_minimum) {
    constexpr bool kTakenOff = Scales<T>::kOf256;
    acc.x = __fmaf_rn(kTakenOff ? -w_min.x : w_min.x, in.y, acc.x);
    acc.y = __fmaf_rn(kTakenOff ? -w_min.y : w_min.y, in.y, acc.y);
  }
}

template <BlockType T, int32_t kLaneRows>
__device__ void add_group(float2 (&acc)[kLaneRows], const std::byte* group, int32_t first_block, int32_t blocks,
                          const LaneRows<kLaneRows>& rows) {
  constexpr DeviceLayout kLayout = device_layout(T);
  const Scales<T> scales(group);
#pragma unroll
  for (int32_t quad = 0; quad < kLayout.quads; ++quad) {
    const Quad<T> weights(group + kLayout.head_bytes + quad * kLayout.quad_bytes());
#pragma unroll
    for (int32_t i = 0; i < kQuadBlocks; ++i) {
      const int32_t in_group = quad * kQuadBlocks + i, block = first_block + in_group;
      // Blocks that fill up the last quad are zeros, as are their scales; any activations will do.
      const int32_t readable = kLayout.quads == 2 ? block : min(block, blocks - 1);
      uint32_t b0, b1;
      weights.words(i, b0, b1);
      float2 w_min = {};
      if constexpr (kLayout.has_minimum) w_min = scales.minimum(in_group);
#pragma unroll
      for (int32_t m = 0; m < (kLaneRows + 1) / 2; ++m) {
        uint32_t a[4];
        load_rows<T>(a, rows, m, readable);
        int32_t sums[2][4];  // of both halves of the block
        if constexpr (T == BlockType::q6_k) {
          multiply_16(sums[0], a[0], a[1], b0);
          multiply_16(sums[1], a[2], a[3], b1);
        } else {
          multiply_32(sums[0], a, b0, b1);
        }
#pragma unroll
        for (int32_t half = 0; half < (T == BlockType::q6_k ? 2 : 1); ++half) {
          const float2 w_scale = scales.scale(in_group, half);
#pragma unroll
          for (int32_t r = 0; r < 2 && 2 * m + r < kLaneRows; ++r)
            add_sums<T>(acc[2 * m + r], sums[half][2 * r], sums[half][2 * r + 1], w_scale, w_min,
                        rows.scales[2 * m + r][block]);
        }
      }
    }
  }
}

// --- the ring

struct Tile {
  int32_t part, index;
};

__device__ Tile tile_of(const BlockProduct& p, int32_t unit, int32_t second) {
  if (p.pairs) return {second, unit};
  int32_t part = 0;
  while (unit >= p.parts[part].tile_count) unit -= p.parts[part++].tile_count;
  return {part, unit};
}

// The groups of the warp's tiles, one after the other.
template <int32_t kStages>
class Ring {
 public:
  __device__ Ring(const BlockProduct& p, std::byte* memory, int32_t first_unit, int32_t step)
      : p_(p), memory_(memory), unit_(first_unit), step_(step) {
    if (unit_ < p_.units) begin_tile();
    for (int32_t stage = 0; stage < kStages; ++stage) fetch();
  }

  __device__ const std::byte* take() const {
    quire::cuda::cp_async_wait<kStages - 1>();
    __syncwarp();
    return memory_ + slot_ * p_.slot_bytes;
  }
  __device__ void give_back() {
    __syncwarp();
    fetch();
  }

 private:
  __device__ void begin_tile() {
    const Tile tile = tile_of(p_, unit_, second_);
    const BlockPart& part = p_.parts[tile.part];
    next_ = part.tiles + tile.index * part.tile_bytes;
    groups_left_ = part.groups;
    group_bytes_ = part.group_bytes;
  }

  // Into the slot that is read next after all others.
  __device__ void fetch() {
    if (unit_ < p_.units) {
      const uint32_t to = quire::cuda::shared_address(memory_ + slot_ * p_.slot_bytes);
#pragma unroll
      for (int32_t round = 0; round < kCopyRounds; ++round) {
        const int32_t at = (round * kWarp + threadIdx.x % kWarp) * 16;
        if (at < group_bytes_) quire::cuda::cp_async(to + at, next_ + at);
      }
      next_ += group_bytes_;
      if (--groups_left_ == 0) {
        second_ = p_.pairs && !second_;
        if (!second_) unit_ += step_;
        if (unit_ < p_.units) begin_tile();
      }
    }
    quire::cuda::cp_async_commit();
    slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
  }

  const BlockProduct& p_;
  std::byte* memory_;
  const std::byte* next_ = nullptr;
  int32_t unit_, step_;  // whose groups are fetched
  int32_t second_ = 0, groups_left_ = 0, group_bytes_ = 0;
  int32_t slot_ = 0;
};

template <BlockType T, int32_t kLaneRows, int32_t kStages>
__device__ void add_tile(float2 (&acc)[kLaneRows], Ring<kStages>& ring, const BlockProduct& p, int32_t groups,
                         const LaneRows<kLaneRows>& rows) {
  for (int32_t group = 0; group < groups; ++group) {
    add_group<T>(acc, ring.take(), group * device_layout(T).group_blocks(), p.blocks, rows);
    ring.give_back();
  }
}

template <int32_t kLaneRows, int32_t kStages>
__device__ void add_tile_of(const BlockPart& part, float2 (&acc)[kLaneRows], Ring<kStages>& ring, const BlockProduct& p,
                            const LaneRows<kLaneRows>& rows) {
  switch (part.type) {
    case BlockType::q8_0:
      return add_tile<BlockType::q8_0>(acc, ring, p, part.groups, rows);
    case BlockType::q4_0:
      return add_tile<BlockType::q4_0>(acc, ring, p, part.groups, rows);
    case BlockType::q4_1:
      return add_tile<BlockType::q4_1>(acc, ring, p, part.groups, rows);
    case BlockType::q5_0:
      return add_tile<BlockType::q5_0>(acc, ring, p, part.groups, rows);
    case BlockType::q5_1:
      return add_tile<BlockType::q5_1>(acc, ring, p, part.groups, rows);
    case BlockType::q4_k:
      return add_tile<BlockType::q4_k>(acc, ring, p, part.groups, rows);
    case BlockType::q5_k:
      return add_tile<BlockType::q5_k>(acc, ring, p, part.groups, rows);
    case BlockType::q6_k:
      return add_tile<BlockType::q6_k>(acc, ring, p, part.groups, rows);
    default:
      return;
  }
}

// --- from sums to memory

// The CPU's bits (cpu::silu): fma(min(0, x), e, max(0, x)) / (1 + e) with e = 2^-|x log2(e)| by a polynomial.
__device__ float exact_silu(float x) {
  const float exponent = __fmul_rn(x, 1.44269504f);
  const float y = -exponent < exponent ? -exponent : exponent;
  const float whole = rintf(y), f = __fsub_rn(y, whole);
  float e = 0.0013264727f;
  e = __fmaf_rn(e, f, 0.009671513f);
  e = __fmaf_rn(e, f, 0.055507336f);
  e = __fmaf_rn(e, f, 0.24022242f);
  e = __fmaf_rn(e, f, 0.693147f);
  e = __fmaf_rn(e, f, 1.0f);
  e = y < -126.0f ? 0.0f : __fmul_rn(e, __int_as_float((static_cast<int32_t>(whole) + 127) << 23));
  const float least = 0.0f < x ? 0.0f : x, most = 0.0f > x ? 0.0f : x;  // x where it is NaN
  return __fdiv_rn(__fmaf_rn(least, e, most), __fadd_rn(1.0f, e));
}

// One output of a row. `gate` counts for pairs alone, whose columns are those of the gate.
__device__ void put_output(const BlockProduct& p, const BlockPart& part, int64_t row, int32_t column, float sum,
                           float gate) {
  if (column >= part.outputs) return;
  if (p.bias) sum = __fadd_rn(sum, p.bias[part.first_output + column]);
  if (p.store == Store::silu_mul) {
    if (p.bias) gate = __fadd_rn(gate, p.bias[column]);
    p.out[row * p.out_stride + column] = __fmul_rn(exact_silu(gate), sum);
    return;
  }
  float& out = p.out[row * p.out_stride + part.first_output + column];
  sum = __fmul_rn(sum, p.out_scale);
  out = p.store == Store::add ? __fadd_rn(out, sum) : sum;
}

__device__ float2 with_other_half(float2 sums) {
  return {__fadd_rn(sums.x, __shfl_xor_sync(kAllLanes, sums.x, 4)),
          __fadd_rn(sums.y, __shfl_xor_sync(kAllLanes, sums.y, 4))};
}

template <int32_t kLaneRows>
__device__ void put_tile(const BlockProduct& p, const BlockPart& part, int32_t tile, int32_t first_row, int32_t rows,
                         float2 (&sums)[kLaneRows], float2 (&gates)[kLaneRows]) {
  const int32_t lane = threadIdx.x % kWarp, column = tile * kTileOutputs + lane % 4 * 2;
#pragma unroll
  for (int32_t r = 0; r < kLaneRows; ++r) {
    if (p.halves) {
      sums[r] = with_other_half(sums[r]);
      gates[r] = with_other_half(gates[r]);
    }
    const int32_t row = first_row + lane / 4 + 8 * r;
    if (row >= rows || (p.halves && row % 2)) continue;
    put_output(p, part, row >> p.halves, column, sums[r].x, gates[r].x);
    put_output(p, part, row >> p.halves, column + 1, sums[r].y, gates[r].y);
  }
}

// --- the kernel

// What a product needs of the activations' scales, for `kRows` rows from `first_row` on; zeros where there are none.
template <int32_t kRows>
__device__ void bring_scales(const BlockProduct& p, float2* scales, int32_t first_row, int32_t rows) {
  const int32_t padded = (p.blocks + kQuadBlocks - 1) / kQuadBlocks * kQuadBlocks;
  for (int32_t row = 0; row < kRows; ++row)
    for (int32_t block = threadIdx.x; block < padded; block += blockDim.x) {
      float2 both = {};
      if (first_row + row < rows && block < p.blocks) {
        const int64_t at = int64_t{first_row + row} * p.blocks + block;
        const auto sums = *reinterpret_cast<const int2*>(p.sums + 2 * at);
        both.x = p.scale[at];
        both.y = __fmul_rn(both.x, static_cast<float>(sums.x + sums.y));
      }
      scales[row * p.scale_stride + block] = both;
    }
}

// grid: blocks that share the units, groups of rows
template <int32_t kLaneRows, int32_t kStages>
__global__ void __launch_bounds__(kMostWarps* kWarp) blocks_kernel(const __grid_constant__ BlockProduct p) {
  extern __shared__ uint4 block_memory[];
  constexpr int32_t kRows = 8 * kLaneRows;
  auto* scales = reinterpret_cast<float2*>(block_memory);
  const int32_t warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  std::byte* rings = reinterpret_cast<std::byte*>(scales + kRows * p.scale_stride);
  const int32_t first_unit = warp * gridDim.x + blockIdx.x, step = warps * gridDim.x;
  Ring<kStages> ring(p, rings + warp * kStages * p.slot_bytes, first_unit, step);  // weights: nobody writes them
  griddep_wait();
  griddep_launch_dependents();
  const int32_t first_row = blockIdx.y * kRows, rows = min(*p.live_rows, p.room) << p.halves;
  if (first_row >= rows) {
    quire::cuda::cp_async_wait<0>();
    return;
  }
  bring_scales<kRows>(p, scales, first_row, rows);
  __syncthreads();

  LaneRows<kLaneRows> lane_rows;
#pragma unroll
  for (int32_t r = 0; r < kLaneRows; ++r) {
    const int32_t row = lane / 4 + 8 * r;
    lane_rows.q[r] = p.q + int64_t{min(first_row + row, rows - 1)} * p.q_stride;
    lane_rows.scales[r] = scales + row * p.scale_stride;
  }
  for (int32_t unit = first_unit; unit < p.units; unit += step) {
    float2 gates[kLaneRows] = {};
    for (int32_t second = 0; second <= (p.pairs ? 1 : 0); ++second) {
      const Tile tile = tile_of(p, unit, second);
      float2 sums[kLaneRows] = {};
      add_tile_of(p.parts[tile.part], sums, ring, p, lane_rows);
      if (p.pairs && second == 0) {
#pragma unroll
        for (int32_t r = 0; r < kLaneRows; ++r) gates[r] = sums[r];
        continue;
      }
      put_tile(p, p.parts[tile.part], tile.index, first_row, rows, sums, gates);
    }
  }
}

// --- launching

int32_t multiprocessors() {
  static const int32_t count = [] {
    int device = 0, found = 0;
    check_cuda(cudaGetDevice(&device), "no device");
    check_cuda(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "the device says nothing");
    return found;
  }();
  return count;
}

BlockProduct product_of(const MatmulArgs& args) {
  const PackedMatrix& weights = *args.weights;
  BlockProduct p{.parts = {},
                 .pairs = args.store == Store::silu_mul,
                 .units = 0,
                 .q = args.in.q,
                 .scale = args.in.scale,
                 .sums = args.in.sums,
                 .q_stride = args.in.q_stride,
                 .blocks = static_cast<int32_t>(weights.inputs() / 32),
                 .out = args.out.data,
                 .bias = args.bias,
                 .out_stride = args.out.stride,
                 .out_scale = args.scale,
                 .store = args.store,
                 .halves = args.in.forms.q8x2 ? 1 : 0,
                 .live_rows = args.live_rows,
                 .room = static_cast<int32_t>(std::min(args.in.rows, args.out.rows)),
                 .scale_stride = 0,
                 .slot_bytes = 0};
  check(weights.parts().size() <= kMostParts, "a product of ", weights.parts().size(), " parts on a GPU");
  for (size_t i = 0; i < weights.parts().size(); ++i) {
    const PackedMatrix::Part& part = weights.parts()[i];
    const DeviceLayout layout = device_layout(part.type);
    const auto tile_count = static_cast<int32_t>((part.outputs + kTileOutputs - 1) / kTileOutputs);
    p.parts[i] = {.tiles = part.tiles,
                  .tile_bytes = part.tile_stride,
                  .groups = static_cast<int32_t>(layout.groups(part.inputs)),
                  .group_bytes = layout.group_bytes(),
                  .tile_count = tile_count,
                  .outputs = static_cast<int32_t>(part.outputs),
                  .first_output = static_cast<int32_t>(part.first_output),
                  .type = part.type};
    p.units = p.pairs ? tile_count : p.units + tile_count;
    p.slot_bytes = std::max(p.slot_bytes, layout.group_bytes());
  }
  // Eight rows' scales lie in banks of their own: 16 bytes more than a multiple of 128.
  p.scale_stride = (p.blocks + kQuadBlocks + 15) / 16 * 16 + 2;
  return p;
}

template <int32_t kLaneRows, int32_t kStages>
void launch_blocks(const BlockProduct& p, cudaStream_t stream) {
  constexpr int32_t kRows = 8 * kLaneRows;
  const int64_t scale_bytes = int64_t{kRows} * p.scale_stride * int64_t{sizeof(float2)};
  const int64_t ring_bytes = int64_t{kStages} * p.slot_bytes;
  const int32_t blocks = std::min(p.units, multiprocessors());
  const int64_t wanted = std::clamp<int64_t>((p.units + blocks - 1) / blocks, 4, kMostWarps);
  const int64_t warps = std::min(wanted, (kMostShared - scale_bytes) / ring_bytes);
  check(warps > 0, "a product of ", p.blocks * 32, " inputs needs more shared memory than a GPU has");
  const int64_t shared = scale_bytes + warps * ring_bytes;
  allow_shared(blocks_kernel<kLaneRows, kStages>, shared, "matmul");
  const int32_t rows = p.room << p.halves;
  const dim3 grid(static_cast<uint32_t>(blocks), static_cast<uint32_t>((rows + kRows - 1) / kRows));
  launch_after(blocks_kernel<kLaneRows, kStages>, grid, static_cast<int32_t>(warps) * kWarp,
               static_cast<size_t>(shared), stream, "matmul", p);
}

}  // namespace

void multiply_blocks(const MatmulArgs& args, Exec& exec) {
  const cudaStream_t stream = stream_of(exec);
  const BlockProduct p = product_of(args);
  if (p.room == 0) return;
  const int32_t rows = p.room << p.halves;
  if (rows <= 8)
    launch_blocks<1, 8>(p, stream);
  else if (rows <= 16)
    launch_blocks<2, 6>(p, stream);
  else
    launch_blocks<4, 4>(p, stream);
}

}  // namespace quire::ops::cuda
