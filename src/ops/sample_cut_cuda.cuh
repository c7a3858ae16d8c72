// Where the likeliest tokens of a row end: by their number (top-k) or by what they weigh together (top-p).
//
// Almost always it is near. The largest logits of the row's parts, as many as tokens are wanted, are a bound that at
// least so many tokens reach, and few more: those are gathered in one block, and each counts for itself which of the
// others come before it. Else a histogram of all tokens, in bins that follow each other in the order of likelihood,
// says in which bin the end lies, and the bin is cut into finer ones until it holds few tokens, or many of one logit,
// of which ids decide.
#pragma once
#include <cfloat>

#include "ops/sample_slice_cuda.cuh"

namespace quire::ops::cuda {

constexpr int32_t kBinBits = 9, kBins = 1 << kBinBits;
constexpr int32_t kFewTokens = 512;   // in the list of one block; each is compared with each
constexpr int32_t kSurelyFew = 256;   // of a bin
constexpr int32_t kMostListed = 192;  // of the likeliest, that with those that lie in between usually fit
static_assert(kFewTokens <= kSampleThreads, "each token of the list has a thread");

struct Bin {
  uint64_t weight;
  uint32_t count;
};

struct CutShared {
  Bin bins[kBins];  // of the whole cluster
  // Of this block. A weight's halves, because shared memory adds 32 bits at a time.
  uint32_t own_low[kBins], own_high[kBins], own_count[kBins];
  RankedToken few[kFewTokens];  // of the cluster's first block, as all below
  uint64_t few_weights[kFewTokens];
  uint32_t few_count;
  uint32_t too_many;  // for the list; of each block, as all below
  uint32_t bound;     // the key that the list's tokens reach
  uint64_t scan[2][kSampleWarps];
  int32_t located;
  uint64_t count_before, weight_before;
};

inline __device__ CutShared& cut_shared() {
  __shared__ CutShared shared;
  return shared;
}

// Bins in the order of likelihood. First of equal width, counted from the largest logit on, the last one holding the
// rest; then of equal numbers of keys in a range.
class Bins {
 public:
  // From the largest logit to where weights are 2^-32.
  __device__ static Bins of_width(float top, double per_logit) {
    Bins bins{};
    bins.by_width_ = true;
    bins.top_ = top;
    bins.scale_ = fminf(fmaxf(static_cast<float>(per_logit * (kBins / 32)), 1e-30f), 1e30f);
    return bins;
  }
  __device__ static Bins of_range(const Slice::KeyRange& range) {
    Bins bins{};
    bins.range_ = range;
    bins.shift_ = max(0, 32 - __clz(range.high - range.low) - kBinBits);
    return bins;
  }
  __device__ int32_t of(float logit) const {  // -1: in none
    const uint32_t key = key_of(logit);
    if (by_width_) return key <= kMinusInfinityKey ? -1 : min(kBins - 1, __float2int_rz((top_ - logit) * scale_));
    return key < range_.low || key > range_.high ? -1 : static_cast<int32_t>((range_.high - key) >> shift_);
  }

 private:
  bool by_width_;
  float top_, scale_;
  Slice::KeyRange range_;
  int32_t shift_;
};

constexpr RankedToken no_cut() { return {0, 0x7fffffff}; }  // behind all

// What lies at the end of what is kept.
struct Cut {
  RankedToken last;
  uint64_t weight;  // up to there, where weights were counted
};

class CutFinder {
 public:
  __device__ explicit CutFinder(Slice& slice) : slice_(slice) {}

  // Fills the bins, with weights too where `weighs`.
  __device__ __noinline__ void count(const Bins& bins, bool weighs, const WeightScale& scale) {
    for (int32_t i = Slice::thread(); i < kBins; i += kSampleThreads)
      cut_shared().own_low[i] = cut_shared().own_high[i] = cut_shared().own_count[i] = 0;
    __syncthreads();
    const Weights weights{scale, no_cut(), 0};
    uint32_t rest_count = 0;
    uint64_t rest_weight = 0;
    slice_.for_each_four([&](int32_t id, const float4& four) {
      const Four own = weighs ? weights.four(id, four) : Four{};
      const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t bin = bins.of(x[i]);
        if (bin == kBins - 1) {  // where the many are; shared memory would take them one by one
          ++rest_count;
          rest_weight += own.of[i];
        } else if (bin >= 0) {
          atomicAdd(&cut_shared().own_count[bin], 1u);
          add_weight(bin, own.of[i]);
        }
      }
    });
    rest_count = __reduce_add_sync(~0u, rest_count);
    rest_weight = warp_sum(rest_weight);
    if (Slice::lane() == 0 && rest_count > 0) {
      atomicAdd(&cut_shared().own_count[kBins - 1], rest_count);
      add_weight(kBins - 1, rest_weight);
    }
    share_bins(weighs);
  }

  // The list is empty. Before the blocks meet for the first time.
  __device__ static void begin() {
    if (Slice::thread() == 0) cut_shared().few_count = cut_shared().too_many = 0;
  }
  // A list of the likeliest tokens, `wanted` of them or more, or all that there are, in the order of nothing. weighs:
  // and what all tokens weigh together.
  struct Gathered {
    bool fits;    // else there is no list
    bool is_all;  // of the row's tokens
    uint64_t weight;
  };
  __device__ __noinline__ Gathered gather_likeliest(int32_t wanted, bool weighs, const WeightScale& scale) {
    if (has_list_) clear_few();
    has_list_ = true;
    if (Slice::warp() == 0) cut_shared().bound = slice_.key_reached_by(wanted);
    __syncthreads();
    const bool is_all = cut_shared().bound <= kMinusInfinityKey;
    const float bound = is_all ? -FLT_MAX : logit_of(cut_shared().bound);
    const Weights weights{scale, no_cut(), 0};
    uint64_t weight = 0;
    bool is_full = false;
    slice_.for_each_four([&](int32_t id, const float4& x) {
      if (weighs) weight += weights.four(id, x).sum();
      list(id, (x.x >= bound) | (x.y >= bound) << 1 | (x.z >= bound) << 2 | (x.w >= bound) << 3, is_full);
    });
    if (weighs)
      weight = slice_.sums_of(weight).total;
    else
      cluster_barrier();
    return {cut_shared().too_many == 0, is_all, weight};
  }

  // The first bin at which the count (or the weight) from the first bin on reaches the target; -1: none does.
  struct Located {
    int32_t bin;
    uint64_t count_before, weight_before;
  };
  __device__ __noinline__ Located locate(bool by_weight, uint64_t target) {
    constexpr int32_t kOwn = kBins / kSampleThreads;
    const int32_t first = Slice::thread() * kOwn;
    __syncthreads();  // what was located before has been read
    if (Slice::thread() == 0) cut_shared().located = -1;
    uint64_t count = 0, weight = 0;
    for (int32_t i = first; i < first + kOwn; ++i) {
      count += cut_shared().bins[i].count;
      weight += cut_shared().bins[i].weight;
    }
    uint64_t count_before = prefix_before(count, cut_shared().scan[0]),
             weight_before = prefix_before(weight, cut_shared().scan[1]);
    __syncthreads();
#pragma unroll 1
    for (int32_t w = 0; w < Slice::warp(); ++w) {
      count_before += cut_shared().scan[0][w];
      weight_before += cut_shared().scan[1][w];
    }
    for (int32_t i = first; i < first + kOwn; ++i) {
      const uint64_t before = by_weight ? weight_before : count_before;
      const uint64_t own = by_weight ? cut_shared().bins[i].weight : cut_shared().bins[i].count;
      if (before < target && before + own >= target) {
        cut_shared().located = i;
        cut_shared().count_before = count_before;
        cut_shared().weight_before = weight_before;
      }
      count_before += cut_shared().bins[i].count;
      weight_before += cut_shared().bins[i].weight;
    }
    __syncthreads();
    return {cut_shared().located, cut_shared().count_before, cut_shared().weight_before};
  }

  __device__ uint64_t total_weight() {  // of all bins
    uint64_t sum = 0;
    for (int32_t i = Slice::thread(); i < kBins; i += kSampleThreads) sum += cut_shared().bins[i].weight;
    return block_sum(sum);
  }
  // The tokens of bins [first, last] that are not behind the cut, of which there are few, as a list in the cluster's
  // first block, in any order. Before, the list is empty: when the bins have been filled, or it was cleared.
  __device__ __noinline__ void gather(const Bins& bins, int32_t first, int32_t last, RankedToken cut = no_cut()) {
    bool is_full = false;
    slice_.for_each_four([&](int32_t id, const float4& four) {
      const float x[4] = {four.x, four.y, four.z, four.w};
      uint32_t wanted = 0;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const int32_t bin = bins.of(x[i]);
        const bool is_wanted = (bin >= first) & (bin <= last) & !cut.before({key_of(x[i]), id + i});
        wanted |= uint32_t{is_wanted} << i;
      }
      list(id, wanted, is_full);
    });
    cluster_barrier();
  }
  __device__ void clear_few() {
    __syncthreads();  // it has been read
    begin();
    cluster_barrier();
  }
  __device__ int32_t few_count() const {
    return static_cast<int32_t>(min(cut_shared().few_count, uint32_t{kFewTokens}));
  }
  __device__ const RankedToken& few(int32_t i) const { return cut_shared().few[i]; }
  __device__ uint64_t& few_weight(int32_t i) { return cut_shared().few_weights[i]; }

  __device__ __noinline__ uint64_t block_sum(uint64_t x) {
    x = warp_sum(x);
    __syncthreads();
    if (Slice::lane() == 0) cut_shared().scan[0][Slice::warp()] = x;
    __syncthreads();
    return warp_sum(Slice::lane() < kSampleWarps ? cut_shared().scan[0][Slice::lane()] : 0);
  }

  // The last token that is kept: that at which the count (or the weight) reaches the target. The bins have been filled
  // and `where` is the bin that was located in them; they are gone afterwards.
  __device__ __noinline__ Cut find(Bins bins, Located where, bool by_weight, uint64_t target, bool weighs,
                                   const WeightScale& scale) {
    uint64_t weight_before = where.weight_before;
    target -= by_weight ? where.weight_before : where.count_before;
    while (cut_shared().bins[where.bin].count > kSurelyFew) {
      uint32_t low = 0xffffffff, high = 0;
      slice_.for_each([&](int32_t, float logit) {
        if (bins.of(logit) != where.bin) return;
        low = min(low, key_of(logit));
        high = max(high, key_of(logit));
      });
      const Slice::KeyRange range = slice_.key_range(low, high);
      if (range.low == range.high) return among_equals(range.low, by_weight, target, weight_before, scale);
      bins = Bins::of_range(range);
      count(bins, weighs, scale);
      where = locate(by_weight, target);
      weight_before += where.weight_before;
      target -= by_weight ? where.weight_before : where.count_before;
    }
    gather(bins, where.bin, where.bin);
    return among_few(by_weight, target, weight_before, scale);
  }

 private:
  // Tokens id + i for each bit i that is wanted.
  __device__ void list(int32_t id, uint32_t wanted, bool& is_full) const {
#pragma unroll 1
    for (; wanted != 0 && !is_full; wanted &= wanted - 1) {
      const int32_t token = id + __ffs(static_cast<int32_t>(wanted)) - 1;
      const uint32_t at = atomicAdd(at_rank(&cut_shared().few_count, 0), 1u);
      is_full = at >= kFewTokens;
      if (!is_full) *at_rank(&cut_shared().few[at], 0) = {key_of(slice_logits()[token - slice_.first_id()]), token};
#pragma unroll 1
      for (int32_t rank = 0; at == kFewTokens && rank < Slice::blocks(); ++rank)
        *at_rank(&cut_shared().too_many, rank) = 1;
    }
  }

  __device__ void add_weight(int32_t bin, uint64_t weight) {
    const auto low = static_cast<uint32_t>(weight);
    auto high = static_cast<uint32_t>(weight >> 32);
    if (low != 0 && atomicAdd(&cut_shared().own_low[bin], low) > ~low) ++high;  // the low half ran over
    if (high != 0) atomicAdd(&cut_shared().own_high[bin], high);
  }

  // Each block sums its part of the bins over all blocks and gives all blocks the sums.
  __device__ __noinline__ void share_bins(bool weighs) {
    cluster_barrier();
    const int32_t part = kBins / Slice::blocks();
    if (Slice::thread() == 0) cut_shared().few_count = cut_shared().too_many = 0;
#pragma unroll 1
    for (int32_t i = Slice::thread(); i < part; i += kSampleThreads) {
      const int32_t bin = Slice::rank() * part + i;
      Bin sum{0, 0};
#pragma unroll 4
      for (int32_t rank = 0; rank < Slice::blocks(); ++rank) {
        sum.count += *at_rank(&cut_shared().own_count[bin], rank);
        if (weighs)
          sum.weight +=
              uint64_t{*at_rank(&cut_shared().own_high[bin], rank)} << 32 | *at_rank(&cut_shared().own_low[bin], rank);
      }
#pragma unroll 4
      for (int32_t rank = 0; rank < Slice::blocks(); ++rank) *at_rank(&cut_shared().bins[bin], rank) = sum;
    }
    cluster_barrier();
  }

  __device__ uint64_t prefix_before(uint64_t x, uint64_t* warp_sums) {
    const uint64_t up_to = warp_prefix(x);
    if (Slice::lane() == 31) warp_sums[Slice::warp()] = up_to;
    return up_to - x;
  }

  // All tokens of one logit: the target is so many of them.
  __device__ Cut among_equals(uint32_t key, bool by_weight, uint64_t target, uint64_t weight_before,
                              const WeightScale& scale) {
    const uint64_t each = weight_of({key, 0}, scale);
    const uint64_t wanted = by_weight ? (target + each - 1) / each : target;
    const EqualKeys is_one{key};
    const Slice::Sums sums = slice_.sums(is_one);
    const int32_t id = slice_.find(sums, wanted - 1, is_one);
    slice_.tell_from_one(id >= 0, static_cast<uint64_t>(id), 0);
    return {{key, static_cast<int32_t>(slice_.told(0))}, weight_before + wanted * each};
  }

  // The list holds the bin's tokens.
  __device__ Cut among_few(bool by_weight, uint64_t target, uint64_t weight_before, const WeightScale& scale) {
    bool is_last = false;
    RankedToken mine{};
    uint64_t weight_up_to = 0;
    if (Slice::rank() == 0) {
      const int32_t i = Slice::thread();
      const bool present = i < few_count();
      if (present) {
        mine = cut_shared().few[i];
        cut_shared().few_weights[i] = weight_of(mine, scale);
      }
      __syncthreads();
      if (present) {
        uint64_t count_up_to = 1;
        weight_up_to = cut_shared().few_weights[i];
        for (int32_t k = 0; k < few_count(); ++k)
          if (cut_shared().few[k].before(mine)) {
            ++count_up_to;
            weight_up_to += cut_shared().few_weights[k];
          }
        const uint64_t up_to = by_weight ? weight_up_to : count_up_to,
                       own = by_weight ? cut_shared().few_weights[i] : 1;
        is_last = up_to >= target && up_to - own < target;
      }
    }
    slice_.tell_from_one(is_last, uint64_t{mine.key} << 32 | static_cast<uint32_t>(mine.id),
                         weight_before + weight_up_to);
    const uint64_t last = slice_.told(0);
    return {{static_cast<uint32_t>(last >> 32), static_cast<int32_t>(static_cast<uint32_t>(last))}, slice_.told(0, 1)};
  }

  Slice& slice_;
  bool has_list_ = false;
};

}  // namespace quire::ops::cuda
