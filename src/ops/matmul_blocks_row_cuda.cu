// One row times quantised weights, with the bits of ref::matmul: what a decode step of one sequence does. Reading the
// weights is what takes the time; so they stream through a ring of shared memory, filled before the kernel before has
// ended, and the rest must not be in their way.
//
//   a block   some neighbouring panels of 32 outputs (packed_blocks.h)
//   a step    256 inputs of a panel, one or two groups: contiguous, one copy, one slot of the ring
//
//   kMultipliers warps   take steps in turn and put terms in the place of the weights: what is to be multiplied and
//                        added for each block and output. A lane has an output; sums of integers are __dp4a's, and
//                        the row's numbers come to all lanes at once
//   one warp             adds the terms up in ascending order, a lane an output: two dependent instructions a block,
//                        which is the longest chain that there is, so it does nothing else
//   one warp             asks for weights
#include <algorithm>

#include "base/hopper.cuh"
#include "ops/fill_activations.cuh"
#include "ops/matmul_blocks_cuda.cuh"

namespace quire::ops::cuda {
namespace {

using namespace quire::cuda::hopper;

constexpr int32_t kMultipliers = 10, kAdder = kMultipliers, kFeeder = kMultipliers + 1;
constexpr int32_t kRowThreads = (kMultipliers + 2) * kWarp;
constexpr int32_t kStepBlocks = 8, kMostSlots = 32;
constexpr int64_t kRowShared = 112 << 10;  // two such blocks fit a multiprocessor

struct RowProduct {
  BlockProduct product;
  int32_t steps;  // of a panel
  int32_t step_groups[kMostParts];
  int32_t panels, more;  // of a block; so many of the first blocks have one more
  int32_t slots, slot_bytes;

  __device__ int32_t first_panel() const {
    const auto block = static_cast<int32_t>(blockIdx.x);
    return block * panels + min(block, more);
  }
  __device__ int32_t own_panels() const { return panels + (static_cast<int32_t>(blockIdx.x) < more ? 1 : 0); }
};

struct RowMemory {
  Barrier full[kMostSlots], terms[kMostSlots], empty[kMostSlots];
  // Steps whose copies were asked for: barriers tell one round of the ring from the next, but no further.
  alignas(16) int32_t asked;
};

__host__ __device__ constexpr int32_t steps_of(int32_t blocks) { return (blocks + kStepBlocks - 1) / kStepBlocks; }
__host__ __device__ constexpr int32_t step_groups(BlockType type) {
  return kStepBlocks / device_layout(type).group_blocks();
}

// The row, in shared memory, filled up to whole steps with zeros.
struct RowInput {
  float2* scales;  // [blocks] (scale, scale * sum of q)
  std::byte* q;    // [blocks, 32]
  float4* normed;  // [blocks, 8] of a row that is normed here
};
int64_t row_input_bytes(const BlockProduct& p) {
  const auto block_bytes = static_cast<int64_t>(sizeof(float2) + 32 + (p.norm ? 32 * sizeof(float) : 0));
  return steps_of(p.blocks) * kStepBlocks * block_bytes;
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
__device__ int32_t dot_unsigned(uint32_t a, uint32_t b, int32_t c) {
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ int32_t dot(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), c);
}

// --- the block's steps

// Every `stride`-th of the block's steps, from `number` on.
class RowSteps {
 public:
  __device__ RowSteps(const RowProduct& r, int32_t number, int32_t stride)
      : r_(r), stride_(stride), panel_(r.first_panel()), end_(panel_ + r.own_panels()), step_(number) {
    find();
  }
  __device__ bool more() const { return panel_ < end_; }
  __device__ void advance() {
    step_ += stride_;
    if (step_ >= r_.steps) find();
  }
  __device__ int32_t step() const { return step_; }
  __device__ BlockType type() const { return type_; }
  __device__ int32_t groups() const { return min(step_groups_, groups_ - step_ * step_groups_); }
  __device__ int32_t bytes() const { return groups() * group_bytes_; }
  __device__ const std::byte* at() const { return panel_at_ + step_ * step_groups_ * group_bytes_; }
  __device__ int32_t part() const { return part_; }
  __device__ int32_t panel_of_part() const { return in_part_; }

 private:
  __device__ void find() {
    for (; step_ >= r_.steps; step_ -= r_.steps) ++panel_;
    if (!more()) return;
    const BlockProduct& p = r_.product;
    part_ = 0;
    in_part_ = panel_;
    while (in_part_ >= p.panels[part_]) in_part_ -= p.panels[part_++];
    const BlockPart& part = p.parts[part_];
    type_ = part.type;
    groups_ = part.groups;
    step_groups_ = r_.step_groups[part_];
    group_bytes_ = part.group_bytes * kPanelTiles;
    panel_at_ = part.panels + in_part_ * part.panel_bytes;
  }

  const RowProduct& r_;
  int32_t stride_, panel_, end_, step_, part_ = 0, in_part_ = 0, groups_ = 0, step_groups_ = 0, group_bytes_ = 0;
  BlockType type_ = BlockType::q4_k;
  const std::byte* panel_at_ = nullptr;
};

// A step's place in the ring.
struct RingPlace {
  int32_t slot = 0;
  uint32_t phase = 0;
  __device__ void advance(int32_t steps, int32_t slots) {
    for (slot += steps; slot >= slots; slot -= slots) phase ^= 1;
  }
};

struct RowRing {
  RowMemory& memory;
  std::byte* slots;
  int32_t slot_bytes, count;

  __device__ std::byte* at(int32_t slot) const { return slots + slot * slot_bytes; }
};

// --- from weights to terms

// What a step adds to the lane's output, in ascending order.
template <BlockType T>
struct RowTerms {
  static constexpr int32_t kHalves = T == BlockType::q6_k ? 2 : 1;
  static constexpr bool kHasMinimum = device_layout(T).has_minimum;
  float number[kStepBlocks][kHalves], factor[kStepBlocks][kHalves];
  float minimum[kStepBlocks], row_sum[kStepBlocks];

  // As the adder takes block i: sum = fma(x, y, sum); sum = fma(z, w, sum).
  __device__ float4 of(int32_t i) const {
    if constexpr (kHalves == 2) return {number[i][0], factor[i][0], number[i][1], factor[i][1]};
    return {number[i][0], factor[i][0], kHasMinimum ? minimum[i] : -0.0f, kHasMinimum ? row_sum[i] : 0};
  }
};

// The lane's output of a tile, in one of its quads.
template <BlockType T>
class LaneQuad {
 public:
  __device__ LaneQuad(const std::byte* quad, int32_t output) : weights_(quad + output * kBlockBytes) {
    if constexpr (kBits == 5) above_[0] = load_16(quad + 512 + output * 16);
    if constexpr (kBits == 6) {
      above_[0] = load_16(quad + 512 + output * 32);
      above_[1] = load_16(quad + 512 + output * 32 + 16);
    }
  }
  // The sums of block i as numbers. `q`: the row's block.
  __device__ void sums(float (&numbers)[RowTerms<T>::kHalves], int32_t i, const std::byte* q) const {
    const uint4 weights = load_16(weights_ + i * kTileOutputs * kBlockBytes), first = load_16(q),
                second = load_16(q + 16);
    constexpr float kUnit = 1.0f / static_cast<float>(1 << Quad<T>::kShift);
    int32_t low = kMagic, high = RowTerms<T>::kHalves == 2 ? kMagic : 0;
    if constexpr (kBits == 8) {
      const uint4 more = load_16(weights_ + i * kTileOutputs * kBlockBytes + 16);
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        low = dot(word_of(weights, c), word_of(first, c), low);
        high = dot(word_of(more, c), word_of(second, c), high);
      }
      numbers[0] = number(low + high, kUnit);
    } else if constexpr (kBits == 4 && RowTerms<T>::kHasMinimum) {  // the upper ones stay where they are, times 16
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const uint4& row = c < 2 ? first : second;
        const uint32_t word = word_of(weights, c);
        high = dot_unsigned(word & 0x0f0f0f0fu, word_of(row, c % 2 * 2), high);
        low = dot_unsigned(word & 0xf0f0f0f0u, word_of(row, c % 2 * 2 + 1), low);
      }
      numbers[0] = number(high * 16 + low, 1.0f / 16);
    } else {
      constexpr bool kOfHalves = RowTerms<T>::kHalves == 2;
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const uint2 words = Quad<T>::unpacked(word_of(weights, c), above(c, i), i);
        const uint4& row = c < 2 ? first : second;
        low = dot(words.x, kOfHalves ? word_of(first, c) : word_of(row, c % 2 * 2), low);
        high = dot(words.y, kOfHalves ? word_of(second, c) : word_of(row, c % 2 * 2 + 1), high);
      }
      numbers[0] = number(kOfHalves ? low : low + high, kUnit);
      if constexpr (kOfHalves) numbers[1] = number(high, kUnit);
    }
  }

 private:
  static constexpr int32_t kBits = device_layout(T).bits, kBlockBytes = kBits == 8 ? 32 : 16;

  static __device__ float number(int32_t sum, float unit) {
    return __fmaf_rn(__int_as_float(sum), unit, -kMagicNumber * unit);
  }
  __device__ uint32_t above(int32_t c, int32_t i) const {
    if constexpr (kBits == 5) return word_of(above_[0], c);
    if constexpr (kBits == 6) return word_of(above_[c / 2], c % 2 * 2 + i / 2);
    return 0;
  }

  const std::byte* weights_;
  uint4 above_[2];
};

// Of the lane's output in a group, which are blocks [kFirst, ...) of its step.
template <BlockType T, int32_t kFirst>
__device__ void add_group_terms(RowTerms<T>& terms, const std::byte* group, int32_t step_block, const RowInput& in) {
  constexpr DeviceLayout kLayout = device_layout(T);
  const int32_t lane = threadIdx.x % kWarp, output = lane % kTileOutputs;
  const std::byte* tile = group + lane / kTileOutputs * kLayout.group_bytes();
  const Scales<T> scales(tile, output);
#pragma unroll
  for (int32_t i = 0; i < kLayout.group_blocks(); i += 2) {
    const float4 two = *reinterpret_cast<const float4*>(in.scales + step_block + kFirst + i);
    const float scale[2] = {two.x, two.z}, sum[2] = {two.y, two.w};
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      const int32_t block = kFirst + i + k;
#pragma unroll
      for (int32_t half = 0; half < terms.kHalves; ++half)
        terms.factor[block][half] = __fmul_rn(scales.scale(i + k, half), scale[k]);
      if constexpr (terms.kHasMinimum) {
        terms.minimum[block] = Scales<T>::kOf256 ? -scales.minimum(i + k) : scales.minimum(i + k);
        terms.row_sum[block] = sum[k];
      }
    }
  }
#pragma unroll
  for (int32_t quad = 0; quad < kLayout.quads; ++quad) {
    const LaneQuad<T> weights(tile + kLayout.head_bytes + quad * kLayout.quad_bytes(), output);
#pragma unroll
    for (int32_t i = 0; i < kQuadBlocks; ++i) {
      const int32_t block = kFirst + quad * kQuadBlocks + i;
      weights.sums(terms.number[block], i, in.q + (step_block + block) * 32);
    }
  }
}

// Groups that are not there add nothing.
template <BlockType T>
__device__ RowTerms<T> terms_of_step(const std::byte* slot, int32_t groups, int32_t step_block, const RowInput& in) {
  constexpr DeviceLayout kLayout = device_layout(T);
  RowTerms<T> terms = {};
  add_group_terms<T, 0>(terms, slot, step_block, in);
  if constexpr (step_groups(T) == 2)
    if (groups == 2)
      add_group_terms<T, kStepBlocks / 2>(terms, slot + kPanelTiles * kLayout.group_bytes(), step_block, in);
  return terms;
}

// --- the warps' roles

// The output of a lane: what is added to its sum, and where it goes.
class RowOutput {
 public:
  __device__ RowOutput(const BlockProduct& p, const RowSteps& steps, bool alive) : p_(&p) {
    const int32_t lane = threadIdx.x % kWarp, tile = lane / kTileOutputs;
    is_up_ = p.joined && tile % 2;
    const BlockPart& part = p.parts[is_up_ ? 1 : steps.part()];
    output_ = p.joined ? (steps.panel_of_part() * 2 + tile / 2) * kTileOutputs + lane % kTileOutputs
                       : steps.panel_of_part() * kPanelOutputs + lane;
    exists_ = alive && output_ < part.outputs;
    column_ = part.first_output + output_;
    if (exists_ && p.bias) bias_ = p.bias[column_];
    if (exists_ && p.store == Store::add) old_ = p.out[column_];
  }
  __device__ void put(float sum) const {
    if (p_->bias) sum = __fadd_rn(sum, bias_);
    if (p_->pairs) {
      const float up = __shfl_down_sync(kAllLanes, sum, kTileOutputs);
      if (exists_ && !is_up_) p_->out[output_] = __fmul_rn(exact_silu(sum), up);
      return;
    }
    sum = __fmul_rn(sum, p_->out_scale);
    if (exists_) p_->out[column_] = p_->store == Store::add ? __fadd_rn(old_, sum) : sum;
  }

 private:
  const BlockProduct* p_;
  int32_t output_, column_;
  bool is_up_, exists_;
  float bias_ = 0, old_ = 0;
};

class Multiplier {
 public:
  __device__ Multiplier(const RowRing& ring, const RowInput& in) : ring_(ring), in_(in) {}

  __device__ void run(const RowProduct& r) const {
    int32_t number = threadIdx.x / kWarp;
    RingPlace place;
    place.advance(number, ring_.count);
    for (RowSteps steps(r, number, kMultipliers); steps.more(); steps.advance()) {
      const volatile int32_t* asked = &ring_.memory.asked;
      while (*asked <= number) {
      }
      wait(&ring_.memory.full[place.slot], place.phase);
      make_terms(steps, ring_.at(place.slot));
      __syncwarp();
      if (threadIdx.x % kWarp == 0) arrive(&ring_.memory.terms[place.slot]);
      number += kMultipliers;
      place.advance(kMultipliers, ring_.count);
    }
  }

 private:
  __device__ void make_terms(const RowSteps& steps, std::byte* slot) const {
    switch (steps.type()) {
      case BlockType::q8_0:
        return make_terms_of<BlockType::q8_0>(steps, slot);
      case BlockType::q4_0:
        return make_terms_of<BlockType::q4_0>(steps, slot);
      case BlockType::q4_1:
        return make_terms_of<BlockType::q4_1>(steps, slot);
      case BlockType::q5_0:
        return make_terms_of<BlockType::q5_0>(steps, slot);
      case BlockType::q5_1:
        return make_terms_of<BlockType::q5_1>(steps, slot);
      case BlockType::q4_k:
        return make_terms_of<BlockType::q4_k>(steps, slot);
      case BlockType::q5_k:
        return make_terms_of<BlockType::q5_k>(steps, slot);
      default:
        return make_terms_of<BlockType::q6_k>(steps, slot);
    }
  }
  template <BlockType T>
  __device__ void make_terms_of(const RowSteps& steps, std::byte* slot) const {
    const RowTerms<T> terms = terms_of_step<T>(slot, steps.groups(), steps.step() * kStepBlocks, in_);
    __syncwarp();  // the weights are read
    auto* to = reinterpret_cast<float4*>(slot) + threadIdx.x % kWarp;
#pragma unroll
    for (int32_t i = 0; i < kStepBlocks; ++i) to[i * kWarp] = terms.of(i);
  }

  const RowRing& ring_;
  const RowInput& in_;
};

class Adder {
 public:
  __device__ explicit Adder(const RowRing& ring) : ring_(ring) {}

  __device__ void run(const RowProduct& r, bool alive) {
    RowSteps panel(r, 0, r.steps);
    if (!panel.more()) return;
    RowOutput output(r.product, panel, alive);
    float4 first[kHalf], second[kHalf];  // of a step, on their way while the others are added
    wait_for_terms();
    load(first, 0);
    load(second, kHalf);
    give_back();
    float sum = 0;
    int32_t step = 0;
    for (int32_t left = r.own_panels() * r.steps - 1;; --left) {
      sum = added(sum, first);
      if (left > 0) {
        wait_for_terms();
        load(first, 0);
      }
      sum = added(sum, second);
      if (left > 0) {
        load(second, kHalf);
        give_back();
      }
      if (++step == r.steps) {
        output.put(sum);
        if (left == 0) return;
        panel.advance();
        output = RowOutput(r.product, panel, alive);
        sum = 0;
        step = 0;
      }
    }
  }

 private:
  static constexpr int32_t kHalf = kStepBlocks / 2;

  static __device__ float added(float sum, const float4 (&terms)[kHalf]) {
#pragma unroll
    for (const float4& block : terms) sum = __fmaf_rn(block.z, block.w, __fmaf_rn(block.x, block.y, sum));
    return sum;
  }
  __device__ void wait_for_terms() const { wait(&ring_.memory.terms[place_.slot], place_.phase); }
  __device__ void load(float4 (&terms)[kHalf], int32_t block) const {
    const auto* from = reinterpret_cast<const float4*>(ring_.at(place_.slot)) + threadIdx.x % kWarp;
#pragma unroll
    for (int32_t i = 0; i < kHalf; ++i) terms[i] = from[(block + i) * kWarp];
  }
  __device__ void give_back() {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(&ring_.memory.empty[place_.slot]);
    place_.advance(1, ring_.count);
  }

  const RowRing& ring_;
  RingPlace place_;
};

// One thread, before and after the row is there.
class Feeder {
 public:
  __device__ Feeder(const RowProduct& r, const RowRing& ring) : r_(r), ring_(ring) {}

  // All that the ring holds at once.
  __device__ void fill() const {
    int32_t slot = 0;
    for (RowSteps next(r_, 0, 1); slot < ring_.count && next.more(); next.advance()) ask(next, slot++);
    ring_.memory.asked = slot;
  }
  __device__ void run() const {
    RingPlace place{0, 0};
    int32_t asked = ring_.count;
    for (RowSteps next(r_, asked, 1); next.more(); next.advance(), place.advance(1, ring_.count)) {
      wait(&ring_.memory.empty[place.slot], place.phase);
      fence_proxy_async();  // terms were written where weights come now
      ask(next, place.slot);
      *const_cast<volatile int32_t*>(&ring_.memory.asked) = ++asked;
    }
  }

 private:
  __device__ void ask(const RowSteps& next, int32_t slot) const {
    Barrier* full = &ring_.memory.full[slot];
    arrive_expect_tx(full, next.bytes());
    bulk_load(quire::cuda::shared_address(ring_.at(slot)), next.at(), next.bytes(), full);
  }

  const RowProduct& r_;
  const RowRing& ring_;
};

// --- the row

__device__ void fill_up_row(const BlockProduct& p, const RowInput& to) {
  const int32_t padded = steps_of(p.blocks) * kStepBlocks;
  for (int32_t i = p.blocks + static_cast<int32_t>(threadIdx.x) / 8; i < padded; i += kRowThreads / 8) {
    reinterpret_cast<uint32_t*>(to.q + i * 32)[threadIdx.x % 8] = 0;
    to.scales[i] = {};
  }
}

// A row that is not alive is brought too, and nobody reads the sums.
__device__ void bring_row(const BlockProduct& p, const RowInput& to) {
  for (int32_t i = threadIdx.x; i < 2 * p.blocks; i += kRowThreads)
    quire::cuda::cp_async(quire::cuda::shared_address(to.q + 16 * i), p.q + 16 * i);
  quire::cuda::cp_async_commit();
  for (int32_t i = threadIdx.x; i < p.blocks; i += kRowThreads) {
    const auto sums = reinterpret_cast<const int2*>(p.sums)[i];
    const float scale = p.scale[i];
    to.scales[i] = {scale, __fmul_rn(scale, static_cast<float>(sums.x + sums.y))};
  }
  quire::cuda::cp_async_wait<0>();
}

// Of the numbers' magnitudes; NaN where one is.
__device__ float largest_magnitude(float x, float y) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(x), "f"(fabsf(y)));
  return largest;
}
// As scale_of_block() has it.
__device__ BlockScale scale_of_largest(float largest) {
  if (!(largest < __uint_as_float(0x7f800000u))) return {__uint_as_float(0x7fc00000u), 0};
  if (largest < 0x1p-119f) return {0, 0};
  return {__fdiv_rn(largest, 127.0f), __fdiv_rn(127.0f, largest)};
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
    const float squares = squares_by_a_warp(to.normed, p.blocks * 8);
    if (threadIdx.x == 0) factor = rms_scale(squares, p.blocks * 32, p.norm_eps);
  }
  __syncthreads();
  return factor;
}

// Sixteen numbers of a block that two threads have, with quantise's bits: number `part` of the row's half blocks.
__device__ void quantise_half(const float4 (&x)[4], int32_t part, bool exists, const RowInput& to) {
  constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer, as by rint
  float largest = 0;
#pragma unroll
  for (const float4& four : x)
#pragma unroll
    for (const float number : {four.x, four.y, four.z, four.w}) largest = largest_magnitude(largest, number);
  largest = largest_magnitude(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  const BlockScale block = scale_of_largest(largest);
  uint32_t words[4];
  int32_t sum = 0;
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const auto rounded = [&](float number) {
      return __float_as_uint(__fadd_rn(__fmul_rn(number, block.inverse), kRounding));
    };
    const uint32_t low = __byte_perm(rounded(x[i].x), rounded(x[i].y), 0x0040);
    const uint32_t high = __byte_perm(rounded(x[i].z), rounded(x[i].w), 0x0040);
    words[i] = block.inverse == 0 ? 0 : __byte_perm(low, high, 0x5410);
    sum = dot(words[i], 0x01010101u, sum);
  }
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  if (!exists) return;
  *reinterpret_cast<uint4*>(to.q + part * 16) = {words[0], words[1], words[2], words[3]};
  if (part % 2 == 0) to.scales[part / 2] = {block.scale, __fmul_rn(block.scale, static_cast<float>(sum))};
}

// As rms_norm and quantise do it, with their bits.
class RowQuantiser {
 public:
  // Before the kernel before has ended: the norm's weights, which nobody on the stream writes.
  __device__ explicit RowQuantiser(const BlockProduct& p) : p_(p), halves_(p.row ? p.blocks * 2 : 0) {
    if (p.norm) load(weights_, reinterpret_cast<const float4*>(p.norm), static_cast<int32_t>(threadIdx.x));
  }
  __device__ void run(const RowInput& to) {
    const float factor = p_.norm ? norm_factor(p_, to) : 1;
    const float4* from = p_.norm ? to.normed : reinterpret_cast<const float4*>(p_.row);
    float4 next[4];
    auto part = static_cast<int32_t>(threadIdx.x);
    load(next, from, part);
#pragma unroll 1
    for (int32_t first = 0; first < halves_; first += kRowThreads, part += kRowThreads) {
      float4 x[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) x[i] = p_.norm ? normed(next[i], factor, weights_[i]) : next[i];
      load(next, from, part + kRowThreads);
      if (p_.norm && first + kRowThreads < halves_)
        load(weights_, reinterpret_cast<const float4*>(p_.norm), part + kRowThreads);
      quantise_half(x, part, part < halves_, to);
    }
  }

 private:
  __device__ void load(float4 (&to)[4], const float4* from, int32_t part) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) to[i] = part < halves_ ? from[part * 4 + i] : float4{};
  }

  const BlockProduct& p_;
  int32_t halves_;
  float4 weights_[4];
};

// --- the kernel

// grid: blocks that share the panels
__global__ void __launch_bounds__(kRowThreads, 2) blocks_row_kernel(const __grid_constant__ RowProduct r) {
  extern __shared__ uint4 row_kernel_memory[];
  RowMemory& memory = *reinterpret_cast<RowMemory*>(row_kernel_memory);
  const BlockProduct& p = r.product;
  RowInput in{.scales = reinterpret_cast<float2*>(&memory + 1), .q = nullptr, .normed = nullptr};
  const int32_t padded = r.steps * kStepBlocks;
  in.q = reinterpret_cast<std::byte*>(in.scales + padded);
  in.normed = reinterpret_cast<float4*>(in.q + padded * 32);
  std::byte* slots = reinterpret_cast<std::byte*>(in.normed) + (p.norm ? padded * 128 : 0);
  const int32_t warp = threadIdx.x / kWarp;
  const RowRing ring{memory, slots, r.slot_bytes, r.slots};
  const Feeder feeder(r, ring);
  if (threadIdx.x == kFeeder * kWarp) {
    for (int32_t i = 0; i < r.slots; ++i) init_barrier(&memory.full[i], 1);
    fence_proxy_async();
    feeder.fill();
    for (int32_t i = 0; i < r.slots; ++i) {
      init_barrier(&memory.terms[i], 1);
      init_barrier(&memory.empty[i], 1);
    }
  }
  fill_up_row(p, in);
  RowQuantiser quantiser(p);
  griddep_wait();
  const bool live = *reinterpret_cast<const volatile int32_t*>(p.live_rows) > 0;
  if (p.row)
    quantiser.run(in);
  else
    bring_row(p, in);
  __syncthreads();
  griddep_launch_dependents();  // not before the row is there: the next kernel's copies would be in its way
  if (warp < kMultipliers)
    Multiplier(ring, in).run(r);
  else if (warp == kAdder)
    Adder(ring).run(r, live);
  else if (threadIdx.x == kFeeder * kWarp)
    feeder.run();
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

int32_t row_slot_bytes(const BlockProduct& p) {
  int32_t most = 0;
  for (const BlockPart& part : p.parts)
    if (part.groups > 0) most = std::max(most, step_groups(part.type) * kPanelTiles * part.group_bytes);
  return most;
}
int64_t row_slots(const BlockProduct& p) {
  const int64_t fixed = int64_t{sizeof(RowMemory)} + row_input_bytes(p);
  return std::min<int64_t>(kMostSlots, (kRowShared - fixed) / row_slot_bytes(p));
}

}  // namespace

bool suits_blocks_row(const BlockProduct& p) {
  constexpr int32_t kFewSlots = 4;
  return p.room == 1 && !p.halves && is_hopper() && row_slots(p) >= kFewSlots;
}

void multiply_blocks_row(const BlockProduct& p, cudaStream_t stream) {
  const int32_t panels = p.all_panels(), blocks = std::min(panels, 2 * multiprocessors());
  RowProduct r{.product = p,
               .steps = steps_of(p.blocks),
               .step_groups = {},
               .panels = panels / blocks,
               .more = panels % blocks,
               .slots = static_cast<int32_t>(row_slots(p)),
               .slot_bytes = row_slot_bytes(p)};
  for (int32_t i = 0; i < kMostParts; ++i)
    if (p.parts[i].groups > 0) r.step_groups[i] = step_groups(p.parts[i].type);
  const int64_t shared = int64_t{sizeof(RowMemory)} + row_input_bytes(p) + int64_t{r.slots} * r.slot_bytes;
  allow_shared(blocks_row_kernel, shared, "matmul");
  launch_after(blocks_row_kernel, dim3(static_cast<uint32_t>(blocks)), kRowThreads, static_cast<size_t>(shared), stream,
               "matmul", r);
}

}  // namespace quire::ops::cuda
