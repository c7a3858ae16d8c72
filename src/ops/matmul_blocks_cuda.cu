// Products of quantised weights with the bits of ref::matmul. A unit is 16 outputs, two tiles of a panel, over all
// inputs: the M side of int8 tensor cores, rows of activations the N side:
//
//   m16n8k32   lane t has of the result output t / 4 of both tiles, rows t % 4 * 2 and t % 4 * 2 + 1
//
// Which eight inputs of a block a lane has does not matter to a sum of integers, so long as both sides agree
// (packed_blocks.h). Each output has one accumulator, which meets its blocks in ascending order: with few rows a team
// of warps has a unit, its groups in turns, and all that does not depend on the accumulator is done before it is handed
// on by the warp that has the group before. With more rows a warp has a unit alone, but where the matrix is so small
// that eight of them at a time have a team each.
//
// Weights come through a ring of shared memory of the warp's own, filled before the kernel before has ended;
// activations and their scales, which all warps read, are brought to shared memory once a block. One row has a kernel
// of its own on a Hopper, matmul_blocks_row_cuda.cu.
#include <algorithm>

#include "ops/matmul_blocks_cuda.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int32_t kMostWarps = 16, kMostTeam = 8, kStages = 3;
constexpr int64_t kMostShared = 224 << 10;

// A warp copies 512 bytes at a time.
constexpr int32_t most_group_bytes() {
  int32_t most = 0;
  for (const BlockType type : kBlockTypes) most = std::max(most, device_layout(type).group_bytes());
  return most;
}
constexpr int32_t kCopyRounds = (2 * most_group_bytes() + 511) / 512;

// --- single instructions

// Sums of 32 products, beginning at kMagic.
__device__ void multiply_32(int32_t (&d)[4], const uint32_t (&a)[4], uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(kMagic));
}
__device__ void multiply_16(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kMagic));
}

// --- activations

// How rows lie in a product: kTiles tiles of 8 columns; in each a lane has kColumns of its two, and with one of them a
// row takes two columns.
template <int32_t kTiles, int32_t kColumns>
struct RowShape {
  static constexpr int32_t kRows = kTiles * 4 * kColumns;
  // The row whose inputs a lane hands over, and the row of its result's column.
  static __device__ int32_t given(int32_t tile) {
    const int32_t column = threadIdx.x % kWarp / 4;
    return kColumns == 1 ? column / 2 : tile * 8 + column;
  }
  static __device__ int32_t had(int32_t tile, int32_t column) {
    return kColumns == 1 ? threadIdx.x % 4 : tile * 8 + threadIdx.x % 4 * 2 + column;
  }
};

// In shared memory. The strides keep rows that are read at once in banks of their own.
struct Activations {
  float2* scales;  // [rows, scale_stride] (scale, scale * sum) of each block
  std::byte* q;    // [rows, q_stride]
  int32_t scale_stride, q_stride;
};
__host__ __device__ constexpr int32_t padded_blocks(int32_t blocks) {
  return (blocks + kQuadBlocks - 1) / kQuadBlocks * kQuadBlocks;
}
__host__ __device__ constexpr int32_t scale_stride_of(int32_t blocks) { return (blocks + 15 + 3) / 16 * 16 + 2; }
__host__ __device__ constexpr int32_t q_stride_of(int32_t blocks) { return padded_blocks(blocks) * 32 + 32; }

template <int32_t kRows>
__device__ void bring_activations(const BlockProduct& p, const Activations& to, int32_t first_row, int32_t rows) {
  const int32_t live = min(rows - first_row, kRows), sixteens = p.blocks * 2, padded = padded_blocks(p.blocks);
  for (int32_t i = threadIdx.x; i < live * sixteens; i += blockDim.x) {
    const int32_t row = i / sixteens, at = i % sixteens * 16;
    quire::cuda::cp_async(quire::cuda::shared_address(to.q + row * to.q_stride + at),
                          p.q + (first_row + row) * p.q_stride + at);
  }
  quire::cuda::cp_async_commit();
#pragma unroll 4
  for (int32_t i = threadIdx.x; i < kRows * padded; i += blockDim.x) {
    const int32_t row = i / padded, block = i % padded;
    float2 both = {};
    if (row < live && block < p.blocks) {
      const int64_t at = int64_t{first_row + row} * p.blocks + block;
      const auto sums = *reinterpret_cast<const int2*>(p.sums + 2 * at);
      both.x = p.scale[at];
      both.y = __fmul_rn(both.x, static_cast<float>(sums.x + sums.y));
    }
    to.scales[row * to.scale_stride + block] = both;
  }
  quire::cuda::cp_async_wait<0>();
}

// --- sums

template <int32_t kTiles, int32_t kColumns>
struct Sums {
  float of[kTiles][kColumns][2];  // of the unit's two tiles
};

// What a block adds to the sum of a row: number * (scale * the row's scale), and minimum * (the row's scale * its sum).
template <BlockType T, int32_t kTiles, int32_t kColumns>
struct Terms {
  static constexpr int32_t kHalves = T == BlockType::q6_k ? 2 : 1;
  float number[kHalves][kTiles][kColumns][2], scale[kHalves][2], minimum[2];
};

template <BlockType T>
__device__ float number_of(int32_t sum) {
  constexpr float kUnit = 1.0f / static_cast<float>(1 << Quad<T>::kShift);
  return __fmaf_rn(__int_as_float(sum), kUnit, -kMagicNumber * kUnit);
}

// What is computed here is not computed later, when others wait for it.
__device__ void pin(float& x) { asm volatile("" : "+f"(x)); }

// Of block i of a quad, `in_group` of its group.
template <BlockType T, int32_t kTiles, int32_t kColumns>
__device__ Terms<T, kTiles, kColumns> terms_of(const Quad<T> (&weights)[2], const Scales<T> (&scales)[2], int32_t i,
                                               int32_t in_group, int32_t block, const Activations& in) {
  Terms<T, kTiles, kColumns> terms;
  const uint2 first = weights[0].words(i), second = weights[1].words(i);
  const uint32_t a[4] = {first.x, second.x, first.y, second.y};
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile) {
    const std::byte* q = in.q + RowShape<kTiles, kColumns>::given(tile) * in.q_stride + block * 32;
    const int32_t c = threadIdx.x % 4;
    int32_t sums[2][4];
    if constexpr (T == BlockType::q6_k) {
      multiply_16(sums[0], a[0], a[1], load_4(q + 4 * c));
      multiply_16(sums[1], a[2], a[3], load_4(q + 16 + 4 * c));
    } else {
      multiply_32(sums[0], a, load_8(q + 8 * c));
    }
#pragma unroll
    for (int32_t half = 0; half < terms.kHalves; ++half)
#pragma unroll
      for (int32_t column = 0; column < kColumns; ++column)
#pragma unroll
        for (int32_t x = 0; x < 2; ++x) terms.number[half][tile][column][x] = number_of<T>(sums[half][2 * x + column]);
  }
#pragma unroll
  for (int32_t x = 0; x < 2; ++x) {
#pragma unroll
    for (int32_t half = 0; half < terms.kHalves; ++half) terms.scale[half][x] = scales[x].scale(in_group, half);
    if constexpr (Scales<T>::kLayout.has_minimum) terms.minimum[x] = scales[x].minimum(in_group);
  }
  return terms;
}

template <BlockType T, int32_t kTiles, int32_t kColumns>
__device__ void pin(Terms<T, kTiles, kColumns>& terms) {
#pragma unroll
  for (int32_t x = 0; x < 2; ++x) {
#pragma unroll
    for (int32_t half = 0; half < terms.kHalves; ++half) {
      pin(terms.scale[half][x]);
#pragma unroll
      for (int32_t column = 0; column < kColumns; ++column) pin(terms.number[half][0][column][x]);
    }
    if constexpr (Scales<T>::kLayout.has_minimum) pin(terms.minimum[x]);
  }
}

template <BlockType T, int32_t kTiles, int32_t kColumns>
__device__ void add(Sums<kTiles, kColumns>& sums, const Terms<T, kTiles, kColumns>& terms, int32_t block,
                    const Activations& in) {
  constexpr float kSign = Scales<T>::kOf256 ? -1.0f : 1.0f;
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int32_t column = 0; column < kColumns; ++column) {
      const float2 row = in.scales[RowShape<kTiles, kColumns>::had(tile, column) * in.scale_stride + block];
#pragma unroll
      for (int32_t x = 0; x < 2; ++x) {
        float& sum = sums.of[tile][column][x];
#pragma unroll
        for (int32_t half = 0; half < terms.kHalves; ++half)
          sum = __fmaf_rn(terms.number[half][tile][column][x], __fmul_rn(terms.scale[half][x], row.x), sum);
        if constexpr (Scales<T>::kLayout.has_minimum) sum = __fmaf_rn(kSign * terms.minimum[x], row.y, sum);
      }
    }
}

// The accumulators of a team's unit on their way from the warp of a group to the warp of the next. Groups of all the
// team's units are numbered on, and each member has a barrier at which the one before it arrives. (Barriers order what
// lies in shared memory and nothing else: a fence would also wait for the weights that are on their way.)
class Baton {
 public:
  static constexpr int32_t kMostSums = 4, kHeldBytes = kWarp * kMostSums * 4, kBytes = kHeldBytes + kMostTeam * 8;

  __device__ Baton(std::byte* memory, int32_t team, int32_t member) : memory_(memory), team_(team), member_(member) {}

  // By one thread, before any other call; the block meets in between.
  __device__ void begin() const {
    if (threadIdx.x % kWarp == 0 && team_ > 1)
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier(member_)));
  }

  // Waits for the number's turn; the sums stay as they are where they begin, or where the warp is alone.
  template <int32_t kColumns>
  __device__ void take(Sums<1, kColumns>& sums, int32_t number, bool begins) {
    if (team_ == 1) return;
    if (number > 0) {
      while (!has_arrived()) {
      }
      parity_ ^= 1;
    }
    if (begins) return;
#pragma unroll
    for (int32_t column = 0; column < kColumns; ++column) {
      sums.of[0][column][0] = held()[column * 2];
      sums.of[0][column][1] = held()[column * 2 + 1];
    }
  }
  template <int32_t kColumns>
  __device__ void pass(const Sums<1, kColumns>& sums) const {
    if (team_ == 1) return;
#pragma unroll
    for (int32_t column = 0; column < kColumns; ++column) {
      held()[column * 2] = sums.of[0][column][0];
      held()[column * 2 + 1] = sums.of[0][column][1];
    }
    __syncwarp();
    if (threadIdx.x % kWarp == 0)
      asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                       barrier(member_ + 1 == team_ ? 0 : member_ + 1))
                   : "memory");
  }

 private:
  __device__ uint32_t barrier(int32_t member) const {
    return quire::cuda::shared_address(memory_ + kHeldBytes) + static_cast<uint32_t>(member) * 8;
  }
  __device__ bool has_arrived() const {
    uint32_t arrived;
    asm volatile(
        "{\n.reg .pred arrived;\nmbarrier.test_wait.parity.shared.b64 arrived, [%1], %2;\nselp.u32 %0, 1, 0, "
        "arrived;\n}"
        : "=r"(arrived)
        : "r"(barrier(member_)), "r"(parity_)
        : "memory");
    return arrived;
  }
  __device__ float* held() const { return reinterpret_cast<float*>(memory_) + threadIdx.x % kWarp * kMostSums; }

  std::byte* memory_;
  int32_t team_, member_;
  uint32_t parity_ = 0;  // of the barrier's next phase
};

// A group of both tiles, which lie one after the other.
template <BlockType T, int32_t kTiles, int32_t kColumns>
__device__ void add_group(Sums<kTiles, kColumns>& sums, const std::byte* group, int32_t number, int32_t in_tile,
                          const Activations& in, Baton& baton) {
  constexpr DeviceLayout kLayout = device_layout(T);
  constexpr bool kAhead = kTiles == 1;                                           // all terms before the sums are there
  constexpr bool kPinned = Terms<T, kTiles, kColumns>::kHalves * kColumns <= 2;  // else registers do not suffice
  constexpr int32_t kBlocks = kLayout.group_blocks();
  const std::byte* other = group + kLayout.group_bytes();
  const Scales<T> scales[2] = {Scales<T>(group), Scales<T>(other)};
  Terms<T, kTiles, kColumns> terms[kAhead ? kBlocks : 1];
#pragma unroll
  for (int32_t quad = 0; quad < kLayout.quads; ++quad) {
    const int32_t at = kLayout.head_bytes + quad * kLayout.quad_bytes();
    const Quad<T> weights[2] = {Quad<T>(group + at), Quad<T>(other + at)};
#pragma unroll
    for (int32_t i = 0; i < kQuadBlocks; ++i) {
      const int32_t in_group = quad * kQuadBlocks + i, block = in_tile * kBlocks + in_group;
      Terms<T, kTiles, kColumns>& own = terms[kAhead ? in_group : 0];
      own = terms_of<T, kTiles, kColumns>(weights, scales, i, in_group, block, in);
      if constexpr (!kAhead) add(sums, own, block, in);
    }
  }
  if constexpr (kAhead) {
#pragma unroll
    for (int32_t block = 0; block < kBlocks && kPinned; ++block) pin(terms[block]);
    baton.take(sums, number, in_tile == 0);
#pragma unroll
    for (int32_t block = 0; block < kBlocks; ++block) add(sums, terms[block], in_tile * kBlocks + block, in);
    baton.pass(sums);
  }
}

template <int32_t kTiles, int32_t kColumns>
__device__ void add_group_of(BlockType type, Sums<kTiles, kColumns>& sums, const std::byte* group, int32_t number,
                             int32_t in_tile, const Activations& in, Baton& baton) {
  switch (type) {
    case BlockType::q8_0:
      return add_group<BlockType::q8_0>(sums, group, number, in_tile, in, baton);
    case BlockType::q4_0:
      return add_group<BlockType::q4_0>(sums, group, number, in_tile, in, baton);
    case BlockType::q4_1:
      return add_group<BlockType::q4_1>(sums, group, number, in_tile, in, baton);
    case BlockType::q5_0:
      return add_group<BlockType::q5_0>(sums, group, number, in_tile, in, baton);
    case BlockType::q5_1:
      return add_group<BlockType::q5_1>(sums, group, number, in_tile, in, baton);
    case BlockType::q4_k:
      return add_group<BlockType::q4_k>(sums, group, number, in_tile, in, baton);
    case BlockType::q5_k:
      return add_group<BlockType::q5_k>(sums, group, number, in_tile, in, baton);
    case BlockType::q6_k:
      return add_group<BlockType::q6_k>(sums, group, number, in_tile, in, baton);
    default:
      return;
  }
}

// --- the way through the weights

// A warp's groups: every `team`th of its team's units, one unit after the other.
class Groups {
 public:
  __device__ Groups(const BlockProduct& p, int32_t first_unit, int32_t step, int32_t member)
      : p_(p), unit_(first_unit), step_(step), group_(member), team_(p.team) {
    if (more()) begin_unit();
    settle();
  }
  __device__ bool more() const { return unit_ < p_.units(); }
  __device__ void advance() {
    group_ += team_;
    settle();
  }
  __device__ int32_t group() const { return group_; }
  __device__ bool is_last() const { return group_ + 1 == groups_; }
  __device__ const BlockPart& part() const { return p_.parts[part_]; }
  __device__ int32_t in_part() const { return in_part_; }  // the unit
  __device__ int32_t bytes() const { return 2 * group_bytes_; }
  __device__ BlockType type() const { return type_; }
  __device__ const std::byte* at() const { return first_ + group_ * kPanelTiles * group_bytes_; }

 private:
  __device__ void settle() {
    while (more() && group_ >= groups_) {
      group_ -= groups_;
      unit_ += step_;
      if (more()) begin_unit();
    }
  }
  __device__ void begin_unit() {
    part_ = 0;
    in_part_ = unit_;
    while (in_part_ >= 2 * p_.panels[part_]) in_part_ -= 2 * p_.panels[part_++];
    groups_ = part().groups;
    group_bytes_ = part().group_bytes;
    type_ = part().type;
    first_ = part().panels + in_part_ / 2 * part().panel_bytes + in_part_ % 2 * 2 * group_bytes_;
  }

  const BlockProduct& p_;
  int32_t unit_, step_, group_, team_;
  int32_t part_ = 0, in_part_ = 0, groups_ = 0, group_bytes_ = 0;
  BlockType type_ = BlockType::q8_0;
  const std::byte* first_ = nullptr;
};

class Ring {
 public:
  __device__ Ring(const BlockProduct& p, std::byte* memory, const Groups& groups)
      : memory_(memory), slot_bytes_(p.slot_bytes), next_(groups) {
    for (int32_t stage = 0; stage < kStages; ++stage) fetch();
  }

  __device__ const std::byte* take() const {
    quire::cuda::cp_async_wait<kStages - 1>();
    __syncwarp();
    return memory_ + slot_ * slot_bytes_;
  }
  __device__ void give_back() {
    __syncwarp();
    fetch();
  }

 private:
  // Into the slot that is read next after all others.
  __device__ void fetch() {
    if (next_.more()) {
      const uint32_t to = quire::cuda::shared_address(memory_ + slot_ * slot_bytes_);
      const std::byte* from = next_.at();
      const int32_t bytes = next_.bytes();
#pragma unroll
      for (int32_t round = 0; round < kCopyRounds; ++round) {
        const int32_t at = (round * kWarp + threadIdx.x % kWarp) * 16;
        if (at >= bytes) break;
        quire::cuda::cp_async(to + at, from + at);
      }
      next_.advance();
    }
    quire::cuda::cp_async_commit();
    slot_ = slot_ + 1 == kStages ? 0 : slot_ + 1;
  }

  std::byte* memory_;
  int32_t slot_bytes_, slot_ = 0;
  Groups next_;
};

// --- from sums to memory

// Of a lane's sum of a unit's tile x; -1: there is no such output.
__device__ int32_t column_of(const BlockProduct& p, const Groups& groups, int32_t x) {
  const BlockPart& part = p.joined ? p.parts[x] : groups.part();
  const int32_t tile = p.joined ? groups.in_part() : 2 * groups.in_part() + x,
                output = tile * kTileOutputs + threadIdx.x % kWarp / 4;
  return output < part.outputs ? part.first_output + output : -1;
}

// `rows` of activations, of which two are a row of the product where it has halves: those of neighbouring columns.
__device__ bool is_put(const BlockProduct& p, int32_t row, int32_t rows) {
  return row < rows && !(p.halves && row % 2);
}

// What a lane's sums are added to: to be read before they are there, where that can be.
template <int32_t kTiles, int32_t kColumns>
__device__ Sums<kTiles, kColumns> addends(const BlockProduct& p, const Groups& groups, int32_t first_row,
                                          int32_t rows) {
  Sums<kTiles, kColumns> old{};
  if (p.store != Store::add) return old;
#pragma unroll
  for (int32_t x = 0; x < 2; ++x) {
    const int32_t output = column_of(p, groups, x);
#pragma unroll
    for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int32_t column = 0; column < kColumns; ++column) {
        const int32_t row = first_row + RowShape<kTiles, kColumns>::had(tile, column);
        if (output >= 0 && is_put(p, row, rows))
          old.of[tile][column][x] = p.out[(row >> p.halves) * p.out_stride + output];
      }
  }
  return old;
}

__device__ void put_silu(const BlockProduct& p, int64_t row, int32_t output, float gate, float up) {
  if (output < 0) return;
  if (p.bias) {
    gate = __fadd_rn(gate, p.bias[output]);
    up = __fadd_rn(up, p.bias[p.parts[0].outputs + output]);
  }
  p.out[row * p.out_stride + output] = __fmul_rn(exact_silu(gate), up);
}

__device__ void put_row(const BlockProduct& p, const Groups& groups, int64_t row, const float (&sums)[2],
                        const float (&old)[2]) {
  if (p.pairs) return put_silu(p, row, column_of(p, groups, 0), sums[0], sums[1]);
#pragma unroll
  for (int32_t x = 0; x < 2; ++x) {
    const int32_t output = column_of(p, groups, x);
    if (output < 0) continue;
    float sum = p.bias ? __fadd_rn(sums[x], p.bias[output]) : sums[x];
    sum = __fmul_rn(sum, p.out_scale);
    p.out[row * p.out_stride + output] = p.store == Store::add ? __fadd_rn(old[x], sum) : sum;
  }
}

template <int32_t kTiles, int32_t kColumns>
__device__ void put_unit(const BlockProduct& p, const Groups& groups, int32_t first_row, int32_t rows,
                         const Sums<kTiles, kColumns>& sums, const Sums<kTiles, kColumns>& old) {
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int32_t column = 0; column < kColumns; ++column) {
      const int32_t row = first_row + RowShape<kTiles, kColumns>::had(tile, column);
      float both[2] = {sums.of[tile][column][0], sums.of[tile][column][1]};
      if (p.halves)
        for (int32_t x = 0; x < 2; ++x) {
          if constexpr (kColumns == 1)
            both[x] = __fadd_rn(both[x], __shfl_xor_sync(kAllLanes, both[x], 1));
          else
            both[x] = __fadd_rn(both[x], sums.of[tile][1 - column][x]);
        }
      if (is_put(p, row, rows)) put_row(p, groups, row >> p.halves, both, old.of[tile][column]);
    }
}

// --- the kernel

constexpr int64_t batons_bytes() { return int64_t{kMostWarps} * Baton::kBytes; }

// grid: blocks that share the units, groups of rows
template <int32_t kTiles, int32_t kColumns>
__global__ void __launch_bounds__(kMostWarps* kWarp) blocks_kernel(const __grid_constant__ BlockProduct p) {
  extern __shared__ uint4 block_memory[];
  constexpr int32_t kRows = RowShape<kTiles, kColumns>::kRows;
  const int32_t warp = threadIdx.x / kWarp, teams = blockDim.x / kWarp / p.team, team = warp / p.team;
  std::byte* memory = reinterpret_cast<std::byte*>(block_memory);
  const int32_t member = warp % p.team;
  Baton baton(memory + team * Baton::kBytes, p.team, member);
  memory += batons_bytes();
  Activations in{.scales = reinterpret_cast<float2*>(memory),
                 .q = nullptr,
                 .scale_stride = scale_stride_of(p.blocks),
                 .q_stride = q_stride_of(p.blocks)};
  in.q = memory + kRows * in.scale_stride * sizeof(float2);
  std::byte* ring_memory = in.q + kRows * in.q_stride + warp * kStages * p.slot_bytes;

  Groups groups(p, team * gridDim.x + blockIdx.x, teams * gridDim.x, member);
  Ring ring(p, ring_memory, groups);  // weights: nobody writes them
  baton.begin();
  griddep_wait();
  griddep_launch_dependents();
  const int32_t first_row = blockIdx.y * kRows, rows = min(*p.live_rows, p.room) << p.halves;
  if (first_row >= rows) {
    quire::cuda::cp_async_wait<0>();
    return;
  }
  bring_activations<kRows>(p, in, first_row, rows);
  __syncthreads();

  constexpr bool kEarly = kTiles == 1;  // else registers do not suffice
  Sums<kTiles, kColumns> sums{};
  for (int32_t number = member; groups.more(); number += p.team, groups.advance()) {
    Sums<kTiles, kColumns> old;
    if (kEarly && groups.is_last()) old = addends<kTiles, kColumns>(p, groups, first_row, rows);
    add_group_of(groups.type(), sums, ring.take(), number, groups.group(), in, baton);
    if (groups.is_last()) {
      if (!kEarly) old = addends<kTiles, kColumns>(p, groups, first_row, rows);
      put_unit(p, groups, first_row, rows, sums, old);
      sums = {};
    } else if (p.team > 1) {
      sums = {};
    }
    ring.give_back();
  }
}

// --- launching

BlockProduct product_of(const MatmulArgs& args) {
  const PackedMatrix& weights = *args.weights;
  BlockProduct p{.parts = {},
                 .panels = {},
                 .joined = weights.join() == PackedMatrix::Join::gate_and_up,
                 .pairs = args.store == Store::silu_mul,
                 .team = 1,
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
                 .slot_bytes = 0,
                 .row = args.fusions.quantise ? args.in.f32 : nullptr,
                 .norm = args.fusions.quantise_norm,
                 .norm_eps = args.fusions.norm_eps};
  check(weights.parts().size() <= kMostParts, "a product of ", weights.parts().size(), " parts on a GPU");
  for (size_t i = 0; i < weights.parts().size(); ++i) {
    const PackedMatrix::Part& part = weights.parts()[i];
    const DeviceLayout layout = device_layout(part.type);
    p.parts[i] = {.panels = part.tiles,
                  .panel_bytes = part.tile_stride,
                  .groups = static_cast<int32_t>(layout.groups(part.inputs)),
                  .group_bytes = layout.group_bytes(),
                  .outputs = static_cast<int32_t>(part.outputs),
                  .first_output = static_cast<int32_t>(part.first_output),
                  .type = part.type};
    const int64_t outputs = p.joined ? (i == 0 ? 2 * part.outputs : 0) : part.outputs;
    p.panels[i] = static_cast<int32_t>((outputs + kPanelOutputs - 1) / kPanelOutputs);
    p.slot_bytes = std::max(p.slot_bytes, 2 * layout.group_bytes());
  }
  return p;
}

template <int32_t kTiles, int32_t kColumns>
int64_t fixed_bytes(const BlockProduct& p) {
  constexpr int64_t kRows = RowShape<kTiles, kColumns>::kRows;
  return batons_bytes() + kRows * (scale_stride_of(p.blocks) * int64_t{sizeof(float2)} + q_stride_of(p.blocks));
}

// Is there room for the rows' activations beside a few warps' weights?
template <int32_t kTiles, int32_t kColumns>
bool fits(const BlockProduct& p) {
  constexpr int32_t kFewWarps = 4;
  return fixed_bytes<kTiles, kColumns>(p) + kFewWarps * kStages * p.slot_bytes <= kMostShared;
}

template <int32_t kTiles, int32_t kColumns>
void launch_blocks(BlockProduct p, cudaStream_t stream) {
  constexpr int32_t kRows = RowShape<kTiles, kColumns>::kRows;
  check((fits<kTiles, kColumns>(p)), "a product of ", p.blocks * 32,
        " inputs needs more memory than a GPU's block has");
  const int32_t blocks = std::min(p.units(), multiprocessors());
  const int64_t ring_bytes = int64_t{kStages} * p.slot_bytes;
  const auto most = static_cast<int32_t>(
      std::min<int64_t>(kMostWarps, (kMostShared - fixed_bytes<kTiles, kColumns>(p)) / ring_bytes));
  const int32_t teams = std::min(most, (p.units() + blocks - 1) / blocks);
  // Warps that have no weights to read help to bring the activations.
  const int32_t alone = std::min(most, std::max(teams, 4));
  p.team = kTiles == 1 ? std::min({most / teams, kMostTeam, p.parts[0].groups}) : 1;
  const int32_t warps = p.team == 1 ? alone : teams * p.team;
  const int64_t shared = fixed_bytes<kTiles, kColumns>(p) + warps * ring_bytes;
  allow_shared(blocks_kernel<kTiles, kColumns>, shared, "matmul");
  const int32_t rows = p.room << p.halves;
  const dim3 grid(static_cast<uint32_t>(blocks), static_cast<uint32_t>((rows + kRows - 1) / kRows));
  launch_after(blocks_kernel<kTiles, kColumns>, grid, warps * kWarp, static_cast<size_t>(shared), stream, "matmul", p);
}

// Whether each group of 8 rows of each unit may have a multiprocessor and a team of its own: a unit of more rows would
// be one warp's, and of a small matrix most of the GPU had nothing to do.
bool suits_teams(const BlockProduct& p, int32_t rows) {
  constexpr int32_t kRows = RowShape<1, 2>::kRows;
  return p.units() * ((rows + kRows - 1) / kRows) <= multiprocessors();
}

}  // namespace

bool quantises_rows(const PackedMatrix& weights, int64_t rows) {
  if (!weights.forms().q8 || rows != 1) return false;
  constexpr float kSomeNorm = 1;  // takes memory, and is not read
  MatmulArgs args{.weights = &weights, .in = {}, .out = {}, .live_rows = nullptr};
  args.in.rows = args.out.rows = 1;
  args.fusions = {.quantise = true, .quantise_norm = &kSomeNorm};
  return suits_blocks_row(product_of(args));
}

void multiply_blocks(const MatmulArgs& args, cudaStream_t stream) {
  const BlockProduct p = product_of(args);
  const int32_t rows = p.room << p.halves;
  if (rows == 0) return;
  if (suits_blocks_row(p)) return multiply_blocks_row(p, stream);
  check(!args.fusions.quantise, "a product of ", args.weights->outputs(), " outputs with room for ", p.room,
        " rows quantises none");
  if (rows <= 4) return launch_blocks<1, 1>(p, stream);
  if (rows <= 8 || suits_teams(p, rows) || !fits<2, 2>(p)) return launch_blocks<1, 2>(p, stream);
  if (rows <= 16 || !fits<4, 2>(p)) return launch_blocks<2, 2>(p, stream);
  launch_blocks<4, 2>(p, stream);
}

}  // namespace quire::ops::cuda
