// How prefill's producer (prefill_producer.h) loads keys and values into their stages: boxes of TMA, row by row, or row
// by row and widened.
#pragma once
#include <cstdint>

#include "attn/prefill_tile_cuda.cuh"
#include "attn/widened_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda::prefill_kernels {

// Where the keys of a tile come from.
struct Source {
  const PageId* pages;
  int32_t first_key, length, kv_head;
  int32_t places, branch, query_row, last_row;  // of a tree

  __device__ explicit Source(const Tile& tile)
      : pages(tile.pages),
        first_key(tile.first_key),
        length(tile.length),
        kv_head(tile.kv_head),
        places(tile.places),
        branch(tile.branch),
        query_row(tile.query_row),
        last_row(tile.last_row) {}
  __device__ int32_t slot_of(int32_t key, int32_t shift) const { return slot_in_pages(pages, shift, key); }
};

// Copies by TMA of a step's keys in so many boxes, for one warp: all lanes look them up, so that they stay together,
// one of them issues.
template <class Memory, int32_t kBoxes>
class BoxLoader {
 public:
  static constexpr int32_t kKeys = Memory::kKeys, kBox = kKeys / kBoxes;

  __device__ BoxLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage), shift_(p.args.keys.page_size.shift()) {
    hopper::prefetch_tensor_map(&p.key_boxes);
    hopper::prefetch_tensor_map(&p.value_boxes);
  }

  struct Slots {
    int32_t of_box[kBoxes];
  };

  __device__ Slots look_up(const Source& source, int32_t step) const {
    Slots slots;
#pragma unroll
    for (int32_t box = 0; box < kBoxes; ++box) {
      const int32_t key = step * kKeys + box * kBox;
      const bool exists = key + kBox > source.first_key && key < source.length;
      slots.of_box[box] = exists ? source.slot_of(key, shift_) : 0;
    }
    return slots;
  }

  __device__ void load_keys(const Source& source, int32_t step, const Slots& slots) {
    hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
    load<Memory::kKeyPanels>(source, Range(source, step), slots, &p_.key_boxes, &storage_.keys_full[keys_.stage],
                             memory_.keys(keys_.stage));
    keys_.next(Memory::kKeyStages);
  }

  __device__ void load_values(const Source& source, int32_t step, const Slots& slots) {
    hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
    const uint32_t to = memory_.values(values_.stage);
    Barrier* const full = &storage_.values_full[values_.stage];
    const Range range(source, step);
    const bool is_whole = range.is_whole();
    load<Memory::kValuePanels>(source, range, slots, &p_.value_boxes, is_whole ? full : &storage_.edge, to);
    if (!is_whole) clear_outside(range, to, full);
    values_.next(Memory::kValueStages);
  }

  __device__ bool publishes_late() const { return false; }
  __device__ bool keys_must_wait() const { return false; }
  __device__ void flush() const {}  // TMA itself signals when a copy is there

 private:
  // Keys of a step that exist for the tile.
  struct Range {
    int32_t first, end;
    __device__ Range(const Source& source, int32_t step)
        : first(max(source.first_key - step * kKeys, 0)), end(min(source.length - step * kKeys, kKeys)) {}
    __device__ bool is_whole() const { return first == 0 && end == kKeys; }
    __device__ bool has(int32_t from, int32_t count) const { return from < end && from + count > first; }
  };

  // The boxes that have any of a range.
  template <int32_t kPanels>
  __device__ void load(const Source& source, const Range& range, const Slots& slots, const CUtensorMap* map,
                       Barrier* full, uint32_t to) const {
    constexpr int32_t kBytes = kBox * kLineBytes;
    if (hopper::elect_one()) {
      int32_t boxes = 0;
#pragma unroll
      for (int32_t box = 0; box < kBoxes; ++box) boxes += range.has(box * kBox, kBox);
      hopper::arrive_expect_tx(full, boxes * kBytes * kPanels);
#pragma unroll
      for (int32_t box = 0; box < kBoxes; ++box)
        if (range.has(box * kBox, kBox))
#pragma unroll
          for (int32_t panel = 0; panel < kPanels; ++panel)
            hopper::tma_load(to + panel * Memory::kPanel + box * kBytes, map, full, panel * kPanelColumns,
                             source.kv_head, slots.of_box[box]);
    }
    __syncwarp();
  }

  // A probability of zero times what lies before the first key, or past the last, must be zero.
  __device__ void clear_outside(const Range& range, uint32_t to, Barrier* full) {
    hopper::wait(&storage_.edge, edge_phase_);
    edge_phase_ ^= 1;
    for (int32_t panel = 0; panel < Memory::kValuePanels; ++panel) {
      clear_lines(to + panel * Memory::kPanel, 0, range.first);
      clear_lines(to + panel * Memory::kPanel, range.end, kKeys);
    }
    hopper::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x == 0) hopper::arrive(full);
  }
  static __device__ void clear_lines(uint32_t panel, int32_t first, int32_t end) {
    for (int32_t i = first * (kLineBytes / 16) + threadIdx.x; i < end * (kLineBytes / 16); i += kWarp)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(panel + i * 16), "r"(0) : "memory");
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  const int32_t shift_;
  PipelineState keys_, values_;
  uint32_t edge_phase_ = 0;
};

// A warpgroup's share of a step's keys, row by row: a warp has a quarter of them, a lane the slot of one.
template <int32_t kKeys>
struct WarpRows {
  static constexpr int32_t kCount = kKeys / (kWarpgroup / kWarp);

  static __device__ int32_t lane() { return threadIdx.x % kWarp; }
  static __device__ int32_t first_line() { return threadIdx.x % kWarpgroup / kWarp * kCount; }

  // In the place of keys that do not exist, or that none of the tile's rows sees, comes the one next to them: its
  // probabilities are masked, and it is among the tile's keys anyway. Less than zero, of a tree: no row has the place.
  template <bool kTrees>
  static __device__ int32_t look_up(const KeyView& keys, const Source& source, int32_t step) {
    const int32_t key = step * kKeys + first_line() + lane() % kCount;
    const int32_t end = kTrees ? source.length + source.places : source.length;
    if (source.first_key >= end) return 0;
    const int32_t seen = min(max(key, source.first_key), end - 1);
    if (kTrees && seen >= source.length)
      return slot_behind_pages(keys, seen - source.length, source.branch, source.query_row, source.last_row);
    return source.slot_of(seen, keys.page_size.shift());
  }

  // 16 bytes of a row, or zeros where no row has the place.
  template <bool kTrees>
  static __device__ void copy(uint32_t to, const std::byte* from, bool exists) {
    if constexpr (kTrees)
      cp_async(to, from, exists);
    else
      cp_async(to, from);
  }
};

// What a warp's copies of rows are to DeferredSignal.
struct RowCopies {
  static __device__ void end_load() { cp_async_commit(); }
  template <int32_t kLoads>
  static __device__ void wait_for_all_but() {
    cp_async_wait<kLoads>();
  }
  static __device__ void signal(Barrier* full) {
    hopper::fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) hopper::arrive(full);
  }
};

// Copies of a warpgroup row by row. Who made the copies must see their end, for the tensor cores to see them: so a load
// is signalled when the next one has been issued.
template <class Memory, int32_t kKeyDim, int32_t kValueDim>
class RowLoader {
 public:
  using Rows = WarpRows<Memory::kKeys>;

  __device__ RowLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage) {}

  __device__ int32_t look_up(const Source& source, int32_t step) const {
    return Rows::template look_up<Memory::kTrees>(p_.args.keys, source, step);
  }

  __device__ void load_keys(const Source& source, int32_t, int32_t slot) {
    hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
    load<kKeyDim>(p_.args.kv.keys, p_.args.kv.key_stride, source.kv_head, slot, memory_.keys(keys_.stage));
    loads_.issued(&storage_.keys_full[keys_.stage]);
    keys_.next(Memory::kKeyStages);
  }

  __device__ void load_values(const Source& source, int32_t, int32_t slot) {
    hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
    load<kValueDim>(p_.args.kv.values, p_.args.kv.value_stride, source.kv_head, slot, memory_.values(values_.stage));
    loads_.issued(&storage_.values_full[values_.stage]);
    values_.next(Memory::kValueStages);
  }

  __device__ bool publishes_late() const { return false; }
  __device__ bool keys_must_wait() const {
    return !hopper::test_wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
  }
  __device__ void flush() { loads_.flush(); }

 private:
  // Eight lanes have a line, four lines go at once. Every second four lie alike.
  template <int32_t kDim>
  __device__ void load(const std::byte* rows, int64_t stride, int32_t kv_head, int32_t slot, uint32_t to) const {
    const int32_t piece = Rows::lane() % 8, line = Rows::lane() / 8;
    const std::byte* const from = rows + (int64_t{kv_head} * kDim + piece * 8) * 2;
    const uint32_t bytes = static_cast<uint32_t>(stride) * 2;
    const uint32_t places[2] = {hopper::piece_at(to, Rows::first_line() + line, piece),
                                hopper::piece_at(to, Rows::first_line() + 4 + line, piece)};
#pragma unroll
    for (int32_t i = 0; i < Rows::kCount / 4; ++i) {
      const int32_t at = __shfl_sync(~0u, slot, i * 4 + line);
      const bool exists = !Memory::kTrees || at >= 0;
      const std::byte* const row = address_of(from, static_cast<uint32_t>(exists ? at : 0), bytes);
#pragma unroll
      for (int32_t panel = 0; panel < panels(kDim); ++panel)
        if (panel * kPanelColumns + piece * 8 < kDim)
          Rows::template copy<Memory::kTrees>(places[i % 2] + i / 2 * 8 * kLineBytes + panel * Memory::kPanel,
                                              row + panel * kLineBytes, exists);
    }
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  PipelineState keys_, values_;
  DeferredSignal<RowCopies, Barrier> loads_;
};

// Keys and values of 8 bits, row by row, which become f16 on their way: exactly. A thread widens what it copied itself,
// when it has issued the next load.
template <class Memory, int32_t kKeyDim, int32_t kValueDim>
class WideningLoader {
 public:
  using Rows = WarpRows<Memory::kKeys>;

  __device__ WideningLoader(const Prefill& p, Memory memory, SharedStorage& storage)
      : p_(p), memory_(memory), storage_(storage) {}

  __device__ int32_t look_up(const Source& source, int32_t step) const {
    return Rows::template look_up<Memory::kTrees>(p_.args.keys, source, step);
  }

  __device__ void load_keys(const Source& source, int32_t, int32_t slot) {
    copy<kKeyDim>(p_.args.kv.keys, p_.args.kv.key_stride, source.kv_head, slot);
    issued(Load::keys);
  }
  __device__ void load_values(const Source& source, int32_t, int32_t slot) {
    copy<kValueDim>(p_.args.kv.values, p_.args.kv.value_stride, source.kv_head, slot);
    issued(Load::values);
  }

  __device__ bool publishes_late() const { return true; }
  __device__ bool keys_must_wait() const {
    return !hopper::test_wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
  }
  __device__ void flush() {
    cp_async_wait<0>();
    widen_last();
    last_ = Load::none;
  }

 private:
  enum class Load : uint8_t { none, keys, values };

  // Four lanes have a line of a panel, eight lines go at once. Widened, the two halves of a piece lie side by side:
  // every second place in even lines, the places between in odd ones, so that no two lanes want the same bank.
  static __device__ int32_t line() { return Rows::lane() / 4; }
  static __device__ int32_t quarter() { return Rows::lane() % 4; }
  template <int32_t kDim>
  static __device__ bool has(int32_t piece) {
    return piece % panels(kDim) * kPanelColumns + quarter() * kRawColumns < kDim;
  }
  __device__ uint32_t raw(int32_t load) const { return memory_.raw(load) + threadIdx.x % kWarpgroup * 16; }

  template <int32_t kDim>
  __device__ void copy(const std::byte* rows, int64_t stride, int32_t kv_head, int32_t slot) const {
    constexpr int32_t kPanels = panels(kDim);
    const std::byte* const from = rows + int64_t{kv_head} * kDim + quarter() * kRawColumns;
    const uint32_t to = raw(turn_);
#pragma unroll
    for (int32_t i = 0; i < Rows::kCount / kRawLines; ++i) {
      const int32_t at = __shfl_sync(~0u, slot, i * kRawLines + line());
      const bool exists = !Memory::kTrees || at >= 0;
      const std::byte* const row =
          address_of(from, static_cast<uint32_t>(exists ? at : 0), static_cast<uint32_t>(stride));
#pragma unroll
      for (int32_t panel = 0; panel < kPanels; ++panel)
        if (has<kDim>(panel))
          Rows::template copy<Memory::kTrees>(to + (i * kPanels + panel) * kWarpgroup * 16, row + panel * kPanelColumns,
                                              exists);
    }
  }

  __device__ void issued(Load load) {
    cp_async_commit();
    cp_async_wait<1>();
    widen_last();
    last_ = load;
  }

  // Into its stage; it lies where the next load will.
  __device__ void widen_last() {
    turn_ ^= 1;
    if (last_ == Load::keys) {
      hopper::wait(&storage_.keys_empty[keys_.stage], keys_.phase ^ 1);
      widen_into<kKeyDim>(memory_.keys(keys_.stage));
      RowCopies::signal(&storage_.keys_full[keys_.stage]);
      keys_.next(Memory::kKeyStages);
    } else if (last_ == Load::values) {
      hopper::wait(&storage_.values_empty[values_.stage], values_.phase ^ 1);
      widen_into<kValueDim>(memory_.values(values_.stage));
      RowCopies::signal(&storage_.values_full[values_.stage]);
      values_.next(Memory::kValueStages);
    }
  }
  template <int32_t kDim>
  __device__ void widen_into(uint32_t panels_at) const {
    constexpr int32_t kPanels = panels(kDim);
    constexpr int32_t kAtOnce = Memory::kConsumers == 3 || raw_pieces(Memory::kKeys, kDim) % 4 ? 2 : 4;
    const uint32_t from = raw(turn_);
    const uint32_t to = hopper::piece_at(panels_at, Rows::first_line() + line(), 2 * quarter());
#pragma unroll
    for (int32_t first = 0; first < raw_pieces(Memory::kKeys, kDim); first += kAtOnce) {
      uint4 pieces[kAtOnce];
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) pieces[i] = load_shared(from + (first + i) * kWarpgroup * 16);
#pragma unroll
      for (int32_t i = 0; i < kAtOnce; ++i) {
        const int32_t piece = first + i;
        if (!has<kDim>(piece)) continue;
        const uint32_t at = piece / kPanels * kRawLines * kLineBytes + piece % kPanels * Memory::kPanel;
        store_shared(to + at, widened(pieces[i].x, pieces[i].y));
        store_shared((to ^ 16) + at, widened(pieces[i].z, pieces[i].w));
      }
    }
  }

  const Prefill& p_;
  const Memory memory_;
  SharedStorage& storage_;
  PipelineState keys_, values_;
  Load last_ = Load::none;  // issued, and not signalled yet
  int32_t turn_ = 0;        // where the next load goes
};

template <int32_t kKeys, class Work, class Loader>
__device__ void produce_tiles(const Work& work, SharedStorage& storage, Loader& loader) {
  Tiles tiles(storage);
  TileScheduler scheduler(work, storage);
  const bool publishes = threadIdx.x == 0;
  if (publishes) scheduler.publish_first();
  wait_and_launch_dependents();
  produce<Source, Steps<kKeys>>(tiles, scheduler, publishes, loader);
}

}  // namespace quire::attn::cuda::prefill_kernels
