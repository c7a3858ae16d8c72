// What a consumer of prefill makes of a tile: scores, their softmax, sums and results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "attn/prefill_load_cuda.cuh"
#include "attn/prefill_tile_cuda.cuh"
#include "attn/softmax_cuda.cuh"
#include "attn/split_rows_cuda.cuh"
#include "attn/widened_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda::prefill_kernels {

// A thread's two rows of a tile, lane / 4 of its warp's 16 and the eighth below, in its columns.
template <int32_t kValueDim>
struct Sums : Softmax {
  float out[kValueDim / 2] = {};
};

// Those of a tree's branches not among them.
template <bool kTrees>
__device__ SeenByTwo seen_by(const Prefill& p, const Tile& tile, int32_t consumer) {
  SeenByTwo seen;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = consumer * kRowsEach + lane_row() + half * 8, query = PackedRow(p, tile, row).query;
    if (kTrees && p.args.keys.branch_lengths) {
      SeenOfTree of_row{};
      if (row < tile.rows) of_row = seen_of_tree(p.args, tile.length, tile.branch, query, tile.query_row + query);
      seen.first[half] = of_row.first;
      seen.end[half] = of_row.end;
      continue;
    }
    const int32_t end = p.args.keys.causal ? tile.least_end + query : tile.length;
    seen.first[half] = p.args.keys.causal && p.args.window >= 0 ? max(0, end - 1 - p.args.window) : 0;
    seen.end[half] = row < tile.rows ? end : 0;
  }
  return seen;
}

// Places of the rows' own branches.
inline __device__ SeenByTwo branches_of(const Prefill& p, const Tile& tile, int32_t consumer) {
  SeenByTwo branches;
#pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    const int32_t row = consumer * kRowsEach + lane_row() + half * 8, query = PackedRow(p, tile, row).query;
    SeenOfTree seen{};
    if (row < tile.rows) seen = seen_of_tree(p.args, tile.length, tile.branch, query, tile.query_row + query);
    branches.first[half] = seen.branch_first;
    branches.end[half] = seen.branch_end;
  }
  return branches;
}

// A consumer's 64 rows of a tile.
//   T         queries
//   Product   what is multiplied: T, or f16 where keys and values were widened to it
template <class Memory, class T, class Product, int32_t kKeyDim, int32_t kValueDim>
class Consumer {
 public:
  static constexpr int32_t kKeys = Memory::kKeys;
  static constexpr bool kConvertsQueries = !std::is_same_v<T, Product>;

  __device__ Consumer(const Prefill& p, Memory memory, SharedStorage& storage, int32_t consumer)
      : p_(p), memory_(memory), storage_(storage), consumer_(consumer) {
    if (consumer == Memory::kConsumers - 1) warp_scheduler_barrier_arrive();  // the first one begins
  }

  // Begins to load the tile's queries; nobody reads the earlier ones any more.
  __device__ void load_queries(const Tile& tile) const {
    sync();
    if (p_.queries_in_boxes)
      load_query_boxes(tile);
    else
      load_query_rows(tile);
  }

  __device__ void wait_for_queries(const Tile& tile) {
    if (p_.queries_in_boxes) {
      hopper::wait(&storage_.queries_full[consumer_], queries_phase_);
      queries_phase_ ^= 1;
      if (!kConvertsQueries) return;
    } else {
      hopper::cp_async_wait_all();
      if (kConvertsQueries) sync();
    }
    if constexpr (kConvertsQueries) convert_queries(tile);
    hopper::fence_proxy_async();
    sync();
  }

  // All steps of a tile. When it returns, the queries are read no more, and the last values are still being summed.
  // Where all rows see all keys, and registers have room for two of them, probabilities are made of a step's scores
  // while those of the step before it are still read.
  template <class Sums>
  __device__ void fold(const Tile& tile, Sums& sums) {
    const Steps<kKeys> steps(tile);
    if (steps.first == steps.end) return;
    // Steps that every row sees whole, and in which no row's last key is.
    const int32_t first_whole = uniform((tile.last_first + kKeys - 1) / kKeys);
    const int32_t end_whole = uniform((tile.least_end + kKeys - 1) / kKeys - 1);
    float scores[kKeys / 2] = {};
    uint32_t probs[Memory::kProbs][kKeys / 4];
    constexpr int32_t kFewKeys = std::min(kKeys, 64);
    if (kFewKeys < kKeys && uniform(tile.end_key) - (steps.end - 1) * kKeys <= kFewKeys)
      first_step<kFewKeys>(tile, steps.end - 1, scores, probs[0], sums);
    else
      first_step<kKeys>(tile, steps.end - 1, scores, probs[0], sums);
    int32_t step = steps.end - 2;
#pragma unroll 1
    while (step >= steps.first) {
      if (Memory::kProbs == 2 && step < end_whole && step > max(first_whole, steps.first)) {
        whole_step(tile, step, scores, probs[0], probs[Memory::kProbs - 1], sums);
        whole_step(tile, step - 1, scores, probs[Memory::kProbs - 1], probs[0], sums);
        step -= 2;
      } else {
        issue_products(scores, probs[0], sums.out);
        masked_softmax(tile, step, scores, sums);
        hopper::wgmma_wait<0>();
        release_values();
        pack<Product>(scores, probs[0]);
        --step;
      }
    }
    wait_for_values();
    hopper::wgmma_fence();
    issue_pv(probs[0], sums.out);
  }

  // After fold(): what the last products become, and where. They are still being made while that is worked out.
  template <class Sums>
  __device__ void write(const Tile& tile, Sums& sums) {
    write_rows(tile, sums, sums.out, [&] {
      hopper::wgmma_wait<0>();
      if (tile.end_key > tile.first_key) release_values();
    });
  }

  // The same of one split of several: by who arrives last.
  template <class Sums>
  __device__ void write_split(const Tile& tile, Sums& sums) {
    const int32_t kv_heads = p_.args.kv.kv_heads;
    const int64_t slot = tile.first_slot * kv_heads + tile.kv_head;
    const SplitRows rows{.first = slot * Memory::kRows + consumer_ * kRowsEach,
                         .distance = kv_heads * Memory::kRows,
                         .rows = tile.rows - consumer_ * kRowsEach};
    const PartialColumns partial{p_.partial, rows, kValueDim, 0};
    hopper::wgmma_wait<0>();
    release_values();
    if (rows.rows <= 0) return;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) sums.sum[half] = quad_sum(sums.sum[half]);
    store_partial(partial, tile.split, sums, sums.out);
    if (!is_last_split(tile)) return;
    Softmax stats;
    float out[kValueDim / 2];
    merge_splits(partial, tile.num_splits, stats, out);
#pragma unroll
    for (int32_t half = 0; half < 2; ++half)
      if (threadIdx.x % 4 != 0) stats.sum[half] = 0;  // four lanes' sums are a row's
    write_rows(tile, stats, out, [] {});
  }

 private:
  __device__ void load_query_boxes(const Tile& tile) const {
    if (threadIdx.x % kWarpgroup >= kWarp || !hopper::elect_one()) return;
    Barrier* const full = &storage_.queries_full[consumer_];
    hopper::arrive_expect_tx(full, Memory::kKeyPanels * kRowsEach * kLineBytes);
    const int32_t query = tile.query_row + p_.by_group(consumer_ * kRowsEach);
#pragma unroll
    for (int32_t panel = 0; panel < Memory::kKeyPanels; ++panel)
      hopper::tma_load(memory_.queries() + panel * Memory::kQueryPanel + consumer_ * kRowsEach * kLineBytes,
                       &p_.query_boxes, full, panel * kPanelColumns, tile.kv_head * p_.group, query);
  }

  __device__ void load_query_rows(const Tile& tile) const {
    constexpr int32_t kPieces = kKeyDim / 8;
    const ConstHeadRows& q = p_.args.q;
    const int32_t thread = threadIdx.x % kWarpgroup;
    for (int32_t i = thread; i < kRowsEach * kPieces; i += kWarpgroup) {
      const int32_t row = consumer_ * kRowsEach + i / kPieces, piece = i % kPieces;
      const bool exists = row < tile.rows;
      const PackedRow at_tile(p_, tile, row);
      const int64_t at = exists ? int64_t{tile.query_row + at_tile.query} * q.row_stride +
                                      (tile.kv_head * p_.group + at_tile.head) * kKeyDim + piece * 8
                                : 0;
      cp_async(hopper::piece_at(memory_.queries() + piece / 8 * Memory::kQueryPanel, row, piece % 8), q.data + at * 2,
               exists);
    }
  }

  // wait(): until the sums are there.
  template <class Wait>
  __device__ void write_rows(const Tile& tile, const Softmax& stats, const float (&out)[kValueDim / 2],
                             const Wait& wait) const {
    const AttendArgs& args = p_.args;
    float factors[2];
    int64_t at[2];
    bool exists[2];
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const float sum = quad_sum(stats.sum[half]), row_max = stats.row_max[half] * kLn2;
      const int32_t packed = consumer_ * kRowsEach + lane_row() + half * 8;
      const PackedRow at_tile(p_, tile, packed);
      const int32_t head = tile.kv_head * p_.group + at_tile.head, row = tile.query_row + at_tile.query;
      exists[half] = packed < tile.rows;
      const float sink = exists[half] && args.sinks ? args.sinks[head] : -INFINITY;
      factors[half] = factor_of(row_max, sum, sink, args.kv.value_scale);
      at[half] = row * args.out.row_stride + head * kValueDim;
      if (exists[half] && threadIdx.x % 4 == 0) write_lse(args, row, head, row_max, sum);
    }
    wait();
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) write_row(out, half, factors[half], exists[half], at[half]);
  }

  // Of the tile's, which have two slots at least.
  __device__ bool is_last_split(const Tile& tile) const {
    const int32_t number = tile.first_slot / 2 * p_.args.kv.kv_heads + tile.kv_head;
    int32_t* const arrivals = p_.arrivals + number * Memory::kConsumers + consumer_;
    bool& is_last = storage_.is_last[consumer_];
    sync();
    if (threadIdx.x % kWarpgroup == 0) is_last = arrive_last(arrivals, 1, tile.num_splits);
    sync();
    return is_last;
  }

  // bf16 to f16, a warp its 16 rows.
  __device__ void convert_queries(const Tile& tile) {
    constexpr int32_t kPieces = Memory::kKeyPanels * 4;  // of each lane: four lines go at once
    const int32_t lane = threadIdx.x % kWarp, row = consumer_ * kRowsEach + threadIdx.x % kWarpgroup / kWarp * 16;
    const uint32_t at = memory_.queries() + row * kLineBytes + lane * 16;
    const auto place = [&](int32_t i) { return at + i / 4 * Memory::kQueryPanel + i % 4 * 4 * kLineBytes; };
    uint4 pieces[kPieces];
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) pieces[i] = load_shared(place(i));
    uint32_t greatest = 0;
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) {
      const int32_t line = row + i % 4 * 4 + lane / 8, column = i / 4 * kPanelColumns + ((lane ^ line) & 7) * 8;
      const bool exists = line < tile.rows && (kKeyDim % kPanelColumns == 0 || column < kKeyDim);
      const uint32_t of_piece = magnitudes(pieces[i]);
      if (exists) greatest = greater(greatest, of_piece);
    }
    const F16Scale scale = F16Scale::of(greatest);
    factor_ = p_.args.softcap > 0 ? p_.factor : p_.factor * scale.unscale;
    cap_scale_ = p_.cap_scale * scale.unscale;
#pragma unroll
    for (int32_t i = 0; i < kPieces; ++i) store_shared(place(i), scale.converted(pieces[i]));
  }

  __device__ float factor() const { return kConvertsQueries ? factor_ : p_.factor; }
  __device__ float cap_scale() const { return kConvertsQueries ? cap_scale_ : p_.cap_scale; }

  // The step of the last keys, of which only the first kCount are there.
  template <int32_t kCount, class Sums>
  __device__ void first_step(const Tile& tile, int32_t step, float (&scores)[kKeys / 2], uint32_t (&probs)[kKeys / 4],
                             Sums& sums) {
    float(&some)[kCount / 2] = reinterpret_cast<float(&)[kCount / 2]>(scores);
    wait_for_keys();
    warp_scheduler_barrier_sync();
    hopper::wgmma_fence();
    issue_qk(some);
    warp_scheduler_barrier_arrive();
    hopper::wgmma_wait<0>();
    release_keys();
    masked_softmax(tile, step, some, sums);
    pack<Product>(some, reinterpret_cast<uint32_t(&)[kCount / 4]>(probs));
#pragma unroll
    for (int32_t i = kCount / 4; i < kKeys / 4; ++i) probs[i] = 0;
  }

  // The scores of the next keys, and the values of the last ones times their probabilities; then the scores are there.
  __device__ void issue_products(float (&scores)[kKeys / 2], const uint32_t (&probs)[kKeys / 4],
                                 float (&out)[kValueDim / 2]) {
    wait_for_keys();
    warp_scheduler_barrier_sync();
    hopper::wgmma_fence();
    issue_qk(scores);
    wait_for_values();
    hopper::wgmma_fence();
    issue_pv(probs, out);
    warp_scheduler_barrier_arrive();
    hopper::wgmma_wait<1>();
    release_keys();
  }

  // A step that all rows see whole.
  template <class Sums>
  __device__ void whole_step(const Tile& tile, int32_t step, float (&scores)[kKeys / 2],
                             const uint32_t (&before)[kKeys / 4], uint32_t (&probs)[kKeys / 4], Sums& sums) {
    issue_products(scores, before, sums.out);
    if (p_.args.softcap > 0 || !stale_softmax<Product, kKeys>(scores, factor(), sums, probs)) {
      hopper::wgmma_wait<0>();
      masked_softmax(tile, step, scores, sums);
      pack<Product>(scores, probs);
    }
    hopper::wgmma_wait<0>();
    release_values();
  }

  // Columns of neighbouring lanes are exchanged, so that four lanes store 32 bytes that lie side by side.
  __device__ void write_row(const float (&out)[kValueDim / 2], int32_t half, float factor, bool exists,
                            int64_t at) const {
    const HeadRows& rows = p_.args.out;
    const int32_t lane = threadIdx.x % 4;
    if (rows.type != p_.args.q.type) {
#pragma unroll
      for (int32_t i = 2 * half; i < kValueDim / 2; i += 4)
        for (int32_t j = 0; j < 2; ++j)
          if (exists) store(rows.type, rows.data, at + i / 4 * 8 + lane * 2 + j, out[i + j] * factor);
      return;
    }
    // Even lanes get four columns of the first of two groups of eight, odd ones of the second.
    const bool odd = lane % 2;
    std::byte* const to = rows.data + (at + odd * 8 + lane / 2 * 4) * 2;
#pragma unroll
    for (int32_t group = 0; group < kValueDim / 8; group += 2) {
      const int32_t i = group * 4 + 2 * half;
      const uint32_t first = pair<T>(out[i] * factor, out[i + 1] * factor);
      const uint32_t second = pair<T>(out[i + 4] * factor, out[i + 5] * factor);
      const uint32_t taken = __shfl_xor_sync(~0u, odd ? first : second, 1);
      if (exists) *reinterpret_cast<uint2*>(to + group * 16) = make_uint2(odd ? taken : first, odd ? second : taken);
    }
  }

  __device__ void sync() const { named_barrier_sync(1 + Memory::kConsumers + consumer_, kWarpgroup); }
  __device__ void warp_scheduler_barrier_sync() const { named_barrier_sync(1 + consumer_, 2 * kWarpgroup); }
  __device__ void warp_scheduler_barrier_arrive() const {
    hopper::named_barrier_arrive(1 + (consumer_ + 1 == Memory::kConsumers ? 0 : consumer_ + 1), 2 * kWarpgroup);
  }

  __device__ void wait_for_keys() const { hopper::wait(&storage_.keys_full[keys_.stage], keys_.phase); }
  __device__ void wait_for_values() const { hopper::wait(&storage_.values_full[values_.stage], values_.phase); }
  __device__ void release_keys() {
    if (threadIdx.x % kWarp == 0) hopper::arrive(&storage_.keys_empty[keys_.stage]);
    keys_.next(Memory::kKeyStages);
  }
  __device__ void release_values() {
    if (threadIdx.x % kWarp == 0) hopper::arrive(&storage_.values_empty[values_.stage]);
    values_.next(Memory::kValueStages);
  }

  template <int32_t kHalf>
  __device__ void issue_qk(float (&scores)[kHalf]) const {
    const uint64_t queries = hopper::wgmma_descriptor(memory_.queries() + consumer_ * kRowsEach * kLineBytes);
    const uint64_t keys = hopper::wgmma_descriptor(memory_.keys(keys_.stage));
#pragma unroll
    for (int32_t step = 0; step < kKeyDim / 16; ++step) {
      const int32_t panel = step / 4, columns = step % 4 * 32;
      hopper::wgmma_qk<Product, 2 * kHalf>(
          scores, hopper::advance_descriptor(queries, panel * Memory::kQueryPanel + columns),
          hopper::advance_descriptor(keys, panel * Memory::kPanel + columns), step > 0);
    }
    hopper::wgmma_commit();
  }

  __device__ void issue_pv(const uint32_t (&probs)[kKeys / 4], float (&out)[kValueDim / 2]) const {
    constexpr int32_t kWide = 128, kWides = kValueDim / kWide, kRest = kValueDim % kWide;
    const uint64_t values = hopper::wgmma_descriptor(memory_.values(values_.stage), Memory::kPanel);
#pragma unroll
    for (int32_t step = 0; step < kKeys / 16; ++step) {
      const auto at = [&](int32_t column) {
        return hopper::advance_descriptor(values, step * 16 * kLineBytes + column / kPanelColumns * Memory::kPanel);
      };
#pragma unroll
      for (int32_t wide = 0; wide < kWides; ++wide)
        hopper::wgmma_pv<Product, kWide>(out + wide * kWide / 2, probs + step * 4, at(wide * kWide), 1);
      if constexpr (kRest >= kPanelColumns)
        hopper::wgmma_pv<Product, kPanelColumns>(out + kWides * kWide / 2, probs + step * 4, at(kWides * kWide), 1);
      if constexpr (kRest % kPanelColumns != 0)
        hopper::wgmma_pv<Product, kRest % kPanelColumns>(out + (kValueDim - kRest % kPanelColumns) / 2,
                                                         probs + step * 4, at(kValueDim - kRest % kPanelColumns), 1);
    }
    hopper::wgmma_commit();
  }

  template <int32_t kHalf, class Sums>
  __device__ void masked_softmax(const Tile& tile, int32_t step, float (&scores)[kHalf], Sums& sums) const {
    constexpr int32_t kCount = 2 * kHalf;
    float rescale[2];
    if (p_.args.softcap > 0) cap<kCount>(scores, p_.args.softcap, cap_scale());
    const int32_t first = step * kKeys;
    if (first < tile.last_first) mask_before<kCount>(scores, seen_by<Memory::kTrees>(p_, tile, consumer_), first);
    if (first + kKeys > tile.least_end) {
      if (Memory::kTrees && tile.branch > 0)
        mask_branches<kCount>(scores, seen_by<Memory::kTrees>(p_, tile, consumer_), branches_of(p_, tile, consumer_),
                              first);
      else
        mask_after<kCount>(scores, seen_by<Memory::kTrees>(p_, tile, consumer_), first);
    }
    online_softmax<kCount>(scores, factor(), sums, rescale);
    if (!__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1 || !(sums.sum[0] + sums.sum[1] >= 0))) return;
    hopper::wgmma_wait<0>();
#pragma unroll
    for (int32_t i = 0; i < kValueDim / 2; ++i) sums.out[i] *= rescale[i / 2 % 2];
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t consumer_;
  PipelineState keys_, values_;
  uint32_t queries_phase_ = 0;
  float factor_ = 0, cap_scale_ = 0;  // where queries are converted
};

}  // namespace quire::attn::cuda::prefill_kernels
