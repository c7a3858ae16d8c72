// A row of logits in the shared memory of a cluster of blocks, and what they do with it together: passes, sums, and
// words that all tell all.
//
//   block r of the cluster    ids [r * slice, (r + 1) * slice)                      slice = kWarps * groups * 128
//   warp w of the block       the w-th part of those, groups of 128 ids             so sums of warps are in order of
//   ids lane l                    four neighbours in each group
//
// Past the vocabulary lies -inf. All threads of the cluster call everything here together, unless it says otherwise.
//
// What runs once a row is not inlined, here and in what is built on it: code that does not fit the instruction cache
// costs more than calls.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/sample_weight.h"

namespace quire::ops::cuda {

constexpr int32_t kMostSampleBlocks = 16, kSampleThreads = 512, kSampleWarps = kSampleThreads / 32;
constexpr int32_t kGroup = 128;      // ids: four of each lane
constexpr int32_t kMostGroups = 24;  // that shared memory holds
constexpr int32_t kParts = 256;      // of the row, whose largest logits all blocks know

// Of each warp, when so many blocks share a row.
constexpr int32_t groups_for(int32_t vocabulary, int32_t blocks) {
  const int32_t ids = blocks * kSampleWarps * kGroup;
  return (vocabulary + ids - 1) / ids;
}

// --- single instructions

inline __device__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
inline __device__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
inline __device__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
// The same place in the shared memory of another block of the cluster.
template <class T>
__device__ T* at_rank(T* here, [[maybe_unused]] int32_t rank) {
#if __CUDA_ARCH__ >= 900
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
  return there;
#else
  return here;
#endif
}
// 16 bytes into shared memory; the thread sees its own after copies_wait().
inline __device__ void copy_16(float4* to, const float* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}
inline __device__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
inline __device__ uint64_t device_clock() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

inline __device__ uint64_t warp_sum(uint64_t x) {
  for (int32_t mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}
inline __device__ double warp_sum(double x) {
  for (int32_t mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}
template <class T>
__device__ T warp_prefix(T x) {  // the lane's own included
  for (int32_t distance = 1; distance < 32; distance *= 2) {
    const T other = __shfl_up_sync(~0u, x, distance);
    if (threadIdx.x % 32 >= distance) x += other;
  }
  return x;
}

// --- keys: whole numbers in the order of the logits, both zeros being one

constexpr uint32_t kMinusInfinityKey = 0x007fffff;
inline __device__ uint32_t key_of(float logit) {
  const auto bits = __float_as_uint(logit + 0.0f);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}
static_assert(kParts == kMostSampleBlocks * kSampleWarps, "a part is a warp's, or of lanes of one");
inline __device__ float logit_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// A token in the order of likelihood: larger logits first, equal ones by id.
struct RankedToken {
  uint32_t key;
  int32_t id;
  __device__ bool before(const RankedToken& other) const {  // without a branch
    return (key > other.key) | ((key == other.key) & (id < other.id));
  }
};

// What tokens count: four neighbours of each lane at a time, by whole warps.
struct Four {
  uint64_t of[4];
  __device__ uint64_t sum() const { return of[0] + of[1] + of[2] + of[3]; }
};

// Their weights; 0 for those behind the last and those below the least weight.
struct Weights {
  WeightScale scale;
  RankedToken last;
  uint64_t least;

  __device__ Four four(int32_t id, const float4& logits) const {
    const float x[4] = {logits.x, logits.y, logits.z, logits.w};
    double exponents[4];
    bool counts[4], some = false;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      exponents[i] = weight_exponent(x[i], scale);
      counts[i] = (exponents[i] >= -42) & !last.before({key_of(x[i]), id + i});  // lower ones are below half a unit
      some |= counts[i];
    }
    Four weights{};
    if (!__any_sync(~0u, some)) return weights;
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      uint64_t bits;
      fixed_two_to(exponents[i], bits);
      const uint64_t own = bits - kFixedZero;
      weights.of[i] = counts[i] & (own >= least) ? own : 0;
    }
    return weights;
  }
};
inline __device__ uint64_t weight_of(const RankedToken& token, const WeightScale& scale) {
  return fixed_weight(logit_of(token.key), scale);
}

// 1 for each of one key.
struct EqualKeys {
  uint32_t key;
  __device__ Four four(int32_t, const float4& x) const {
    return {key_of(x.x) == key, key_of(x.y) == key, key_of(x.z) == key, key_of(x.w) == key};
  }
};

// --- the slice

struct SliceShared {
  uint64_t told[2][kMostSampleBlocks][2];     // by each block of the cluster, in turns
  alignas(16) uint32_t best_of_part[kParts];  // keys
  uint64_t warp_words[kSampleWarps];
  uint64_t group_sums[kMostGroups];
};
// Shared memory by name: the compiler then knows of each access that it is one to shared memory.
inline __device__ SliceShared& slice_shared() {
  __shared__ SliceShared shared;
  return shared;
}
inline __device__ float* slice_logits() {
  extern __shared__ float4 logits[];
  return reinterpret_cast<float*>(logits);
}

class Slice {
 public:
  __device__ explicit Slice(int32_t groups) : groups_(groups) {}

  __device__ static int32_t blocks() { return static_cast<int32_t>(gridDim.x); }  // of the cluster
  __device__ static int32_t rank() { return static_cast<int32_t>(blockIdx.x); }
  __device__ static int32_t thread() { return static_cast<int32_t>(threadIdx.x); }
  __device__ static int32_t warp() { return thread() / 32; }
  __device__ static int32_t lane() { return thread() % 32; }
  __device__ int32_t size() const { return kSampleWarps * kGroup * groups_; }
  __device__ int32_t first_id() const { return rank() * size(); }
  __device__ int32_t groups() const { return groups_; }

  // Where in the slice this lane's four of a warp's group lie.
  __device__ int32_t place(int32_t of_warp, int32_t group) const {
    return (of_warp * groups_ + group) * kGroup + lane() * 4;
  }
  __device__ static float4& four(int32_t at) { return *reinterpret_cast<float4*>(slice_logits() + at); }

  // Calls visit(id, four logits from there on) for all of this thread, in the order of ids.
  template <class Visit>
  __device__ void for_each_four(Visit visit) const {
#pragma unroll 1
    for (int32_t group = 0; group < groups_; ++group) {
      const int32_t at = place(warp(), group);
      visit(first_id() + at, four(at));
    }
  }
  template <class Visit>
  __device__ void for_each(Visit visit) const {  // visit(id, logit)
    for_each_four([&](int32_t id, const float4& x) {
      visit(id, x.x), visit(id + 1, x.y), visit(id + 2, x.z), visit(id + 3, x.w);
    });
  }

  // Each block tells two words, the same in its first threads; afterwards told(rank) are those of each.
  __device__ void tell(uint64_t a, uint64_t b = 0) {
    turn_ ^= 1;
    if (thread() < blocks()) {
      uint64_t* const to = at_rank(slice_shared().told[turn_][rank()], thread());
      to[0] = a;
      to[1] = b;
    }
    cluster_barrier();
  }
  // One thread of the cluster tells all; the others call it too, with mine = false.
  __device__ void tell_from_one(bool mine, uint64_t a, uint64_t b) {
    turn_ ^= 1;
    for (int32_t to = 0; mine && to < blocks(); ++to) {
      uint64_t* const there = at_rank(slice_shared().told[turn_][0], to);
      there[0] = a;
      there[1] = b;
    }
    cluster_barrier();
  }
  __device__ uint64_t told(int32_t rank, int32_t word = 0) const { return slice_shared().told[turn_][rank][word]; }

  // The first in the order of likelihood, from the first of each thread. `sound`: whether it holds for all threads.
  struct Likeliest {
    RankedToken token;
    bool sound;
    __device__ bool none() const { return token.key <= kMinusInfinityKey; }
  };
  __device__ __noinline__ Likeliest likeliest(float best, int32_t id, bool sound = true) {
    tell_best_of_parts(key_of(best));
    const RankedToken mine = warp_first({key_of(best), id});
    sound = __all_sync(~0u, sound);
    if (lane() == 0) slice_shared().warp_words[warp()] = packed(mine, sound);
    __syncthreads();
    const Likeliest block = first_of(lane() < kSampleWarps ? slice_shared().warp_words[lane()] : kNothing);
    tell(packed(block.token, block.sound));
    return first_of(lane() < blocks() ? told(lane()) : kNothing);
  }

  // After likeliest(), by one warp: a key that at least `wanted` tokens reach, and usually few more, because so many of
  // the row's parts have one; 0: fewer parts than that have any.
  __device__ uint32_t key_reached_by(int32_t wanted) const {
    constexpr uint32_t kLeastBit = 1 << 13;  // finer would take longer and spare no tokens
    const auto* const keys = reinterpret_cast<const uint4*>(slice_shared().best_of_part);
    const uint4 a = keys[lane()], b = keys[lane() + 32];
    uint32_t bound = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit >= kLeastBit; bit >>= 1) {
      const uint32_t next = bound | bit;
      const int32_t reach = (a.x >= next) + (a.y >= next) + (a.z >= next) + (a.w >= next) + (b.x >= next) +
                            (b.y >= next) + (b.z >= next) + (b.w >= next);
      if (__reduce_add_sync(~0u, reach) >= wanted) bound = next;
    }
    return bound;
  }

  // --- sums in the order of ids of what tokens count: Weights or EqualKeys

  struct Sums {
    uint64_t total, before, own;  // of the cluster; of the blocks before this one; of this one
  };
  template <class Counted>
  __device__ __noinline__ Sums sums(const Counted& measure) {
    uint64_t sum = 0;
    for_each_four([&](int32_t id, const float4& x) { sum += measure.four(id, x).sum(); });
    return sums_of(sum);
  }
  __device__ __noinline__ Sums sums_of(uint64_t sum) {  // from that of each thread
    sum = warp_sum(sum);
    if (lane() == 0) slice_shared().warp_words[warp()] = sum;
    __syncthreads();
    const uint64_t own = warp_sum(lane() < kSampleWarps ? slice_shared().warp_words[lane()] : 0);
    tell(own);
    const uint64_t theirs = lane() < blocks() ? told(lane()) : 0;
    return {warp_sum(theirs), warp_sum(lane() < rank() ? theirs : 0), own};
  }
  // The token at which the sums go above the target, in the one thread that finds it; elsewhere -1. Right behind
  // sums(measure). Not for the cluster together: blocks without the token return at once.
  template <class Counted>
  __device__ __noinline__ int32_t find(const Sums& sums, uint64_t target, const Counted& measure) {
    if (target < sums.before || target - sums.before >= sums.own) return -1;
    uint64_t left = target - sums.before;
    int32_t found_warp = 0;
#pragma unroll 1
    for (; slice_shared().warp_words[found_warp] <= left; ++found_warp) left -= slice_shared().warp_words[found_warp];
#pragma unroll 1
    for (int32_t group = warp(); group < groups_; group += kSampleWarps) {
      const uint64_t sum = warp_sum(measure_four(place(found_warp, group), measure).sum());
      if (lane() == 0) slice_shared().group_sums[group] = sum;
    }
    __syncthreads();
    int32_t group = 0;
#pragma unroll 1
    for (; slice_shared().group_sums[group] <= left; ++group) left -= slice_shared().group_sums[group];
    if (warp() != group % kSampleWarps) return -1;
    const int32_t at = place(found_warp, group);
    const Four counted = measure_four(at, measure);
    const uint64_t up_to = warp_prefix(counted.sum()), before = up_to - counted.sum();
    if (left < before || left >= up_to) return -1;
    left -= before;
    int32_t id = first_id() + at;
    uint64_t passed = 0;
#pragma unroll
    for (int32_t i = 0; i < 3; ++i) id += (passed += counted.of[i]) <= left;
    return id;
  }

  __device__ __noinline__ double sum_of_doubles(double sum) {  // in one order, whatever the threads' timing
    sum = warp_sum(sum);
    if (lane() == 0) slice_shared().warp_words[warp()] = __double_as_longlong(sum);
    __syncthreads();
    const auto in_order = [](uint64_t word) { return warp_sum(__longlong_as_double(word)); };
    tell(__double_as_longlong(in_order(lane() < kSampleWarps ? slice_shared().warp_words[lane()] : 0)));
    return in_order(lane() < blocks() ? told(lane()) : 0);
  }

  struct KeyRange {
    uint32_t low, high;
  };
  __device__ __noinline__ KeyRange key_range(uint32_t low, uint32_t high) {  // over all threads
    low = __reduce_min_sync(~0u, low);
    high = __reduce_max_sync(~0u, high);
    if (lane() == 0) slice_shared().warp_words[warp()] = uint64_t{low} << 32 | high;
    __syncthreads();
    const KeyRange block = range_of(lane() < kSampleWarps ? slice_shared().warp_words[lane()] : kNoRange);
    tell(uint64_t{block.low} << 32 | block.high);
    return range_of(lane() < blocks() ? told(lane()) : kNoRange);
  }

 private:
  static constexpr uint64_t kNothing = uint64_t{1} << 31 | 0x7fffffff, kNoRange = uint64_t{0xffffffff} << 32;

  template <class Counted>
  __device__ __noinline__ Four measure_four(int32_t at, const Counted& measure) const {
    return measure.four(first_id() + at, four(at));
  }

  // A part is some neighbouring lanes. All blocks have read what was told before when they have met since.
  __device__ void tell_best_of_parts(uint32_t key) const {
    const int32_t lanes = kSampleThreads * blocks() / kParts, parts = kParts / blocks();
    for (int32_t mask = 1; mask < lanes; mask *= 2) key = max(key, __shfl_xor_sync(~0u, key, mask));
    if (thread() % lanes < blocks())
      *at_rank(&slice_shared().best_of_part[rank() * parts + thread() / lanes], thread() % lanes) = key;
  }

  __device__ static RankedToken warp_first(const RankedToken& mine) {
    const uint32_t key = __reduce_max_sync(~0u, mine.key);
    const auto id = static_cast<uint32_t>(mine.key == key ? mine.id : 0x7fffffff);
    return {key, static_cast<int32_t>(__reduce_min_sync(~0u, id))};
  }
  __device__ static uint64_t packed(const RankedToken& token, bool sound) {
    return uint64_t{token.key} << 32 | uint32_t{sound} << 31 | static_cast<uint32_t>(token.id);
  }
  __device__ static Likeliest first_of(uint64_t word) {
    const RankedToken token = {static_cast<uint32_t>(word >> 32), static_cast<int32_t>(word & 0x7fffffff)};
    return {warp_first(token), __all_sync(~0u, (word >> 31 & 1) != 0) != 0};
  }
  __device__ static KeyRange range_of(uint64_t word) {
    return {__reduce_min_sync(~0u, static_cast<uint32_t>(word >> 32)),
            __reduce_max_sync(~0u, static_cast<uint32_t>(word))};
  }

  int32_t groups_;
  int32_t turn_ = 0;
};

}  // namespace quire::ops::cuda
