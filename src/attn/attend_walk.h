// The walk over one item's keys, the same for every instruction set: which rows the tile has, which keys each sees, in
// which order blocks and ranges are folded. `Engine` does the arithmetic of one block.
//
//   rows of a tile:  row = (kv head * positions + position) * heads + head, of the item's heads of one kv head
//
// Keys lie at logical positions: a sequence's pages first, then, in trees, the row's own branch. Blocks and ranges are
// anchored at position 0, so a key meets the same neighbours whatever the mode. In a tree the blocks that lie wholly in
// the prefix are shared by all rows of the tile; from the block that holds the prefix's end on, each position walks its
// own.
//
// The file is compiled once for each instruction set, so all of it has internal linkage: the linker must not keep one
// copy of a function for all of them.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "attn/attend_cpu.h"
#include "attn/attend_tile.h"
#include "base/simd/exp2.h"

namespace quire::attn::cpu {
namespace {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// One block's keys: where the rows of token j lie (head 0), and which j are real. The others repeat a real one, so
// that loading them is safe; what is computed from them is masked.
struct BlockKeys {
  const std::byte* key[kBlock];
  const std::byte* value[kBlock];
  int32_t position;  // of j = 0
  int32_t begin;     // real: [begin, end)
  int32_t end;
};

// What to fetch of the next block while this one is computed: row_bytes of each of its rows [row, end), line after
// line. A few lines at a time between products: a burst would fill the core's miss buffers and stall it. Into L2 only,
// because in L1 the rows' regular distance maps them all to a few sets.
struct Prefetch {
  const std::byte* const* rows = nullptr;
  int64_t offset = 0;
  int32_t row_bytes = 0;
  int32_t row = 0;
  int32_t end = 0;
  int32_t at = 0;  // bytes of `row` fetched

  void fetch(int32_t lines) {
    for (; lines > 0 && row < end; --lines) {
      __builtin_prefetch(rows[row] + offset + at, 0, 2);
      at += 64;
      if (at >= row_bytes) {
        at = 0;
        ++row;
      }
    }
  }
};

inline int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t max_of(int32_t a, int32_t b) { return a > b ? a : b; }
inline int32_t floor_to(int32_t x, int32_t step) { return x / step * step; }

// Calls body(integral constant n) for n in [1, Most].
template <int Most, class Body>
inline void with_rows(int32_t n, Body body) {
  if constexpr (Most > 1) {
    if (n < Most) return with_rows<Most - 1>(n, body);
  }
  body(std::integral_constant<int, Most>{});
}

// The keys of the block that some of the rows [first, end) see.
struct Seen {
  int32_t from;
  int32_t to;  // none are seen where this is not above `from`
};
inline Seen seen_by(const TileState& t, int32_t first, int32_t end, const BlockKeys& keys) {
  int32_t low = t.low[first], high = t.high[first];
  for (int32_t r = first + 1; r < end; ++r) {
    low = min_of(low, t.low[r]);
    high = max_of(high, t.high[r]);
  }
  return {max_of(low - keys.position, keys.begin), min_of(high - keys.position, keys.end)};
}

// Which item, cut down to plain numbers.
struct WorkItem {
  int32_t sequence;
  int32_t first_query;  // row of q
  int32_t positions;
  int32_t first_head;  // query head of row 0
  int32_t heads;       // query heads of one kv head in this item
  int32_t first_kv_head;
  int32_t kv_heads;
  int32_t start;   // position of the sequence's first key
  int32_t length;  // keys in pages
  int32_t range;   // the one range to walk, or -1 for all
  int64_t split;   // where a split item leaves its partial result; -1: it is none
};

inline bool locate_item(const Task& task, int64_t index, WorkItem& item) {
  const KeyView& keys = task.args.keys;
  const int64_t tile_item = index / task.head_groups;
  int32_t low = 0, high = task.live;  // the sequence with cu_items[low] <= tile_item < cu_items[low + 1]
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (keys.cu_items[middle] <= tile_item)
      low = middle;
    else
      high = middle;
  }
  const int32_t b = low;
  const int32_t in_sequence = static_cast<int32_t>(tile_item - keys.cu_items[b]);
  const int32_t queries = keys.cu_q[b + 1] - keys.cu_q[b];
  item.sequence = b;
  item.length = keys.lengths[b];
  item.start = keys.starts_at_first_page ? keys.first_page[b] * keys.page_size.tokens() : 0;

  int32_t tile = in_sequence;
  item.range = -1;
  item.split = -1;
  if (keys.cu_splits[b + 1] > keys.cu_splits[b]) {
    const int32_t end = item.start + item.length + keys.most_branch_tokens;
    const int32_t ranges = static_cast<int32_t>(ranges_of(item.start, end));
    if (ranges <= 0) return false;
    tile = in_sequence / ranges;
    item.range = item.start / kRange + in_sequence % ranges;
    item.split = keys.cu_splits[b] + in_sequence;
  }
  const int32_t first = tile * task.choice.positions;
  item.positions = min_of(task.choice.positions, queries - first);
  item.first_query = keys.cu_q[b] + first;

  const int32_t chunks = (task.group + task.choice.head_chunk - 1) / task.choice.head_chunk;
  const int32_t head_group = static_cast<int32_t>(index % task.head_groups);
  const int32_t chunk = head_group % chunks;
  item.first_kv_head = head_group / chunks * task.kv_heads;
  item.kv_heads = task.kv_heads;
  item.heads = min_of(task.choice.head_chunk, task.group - chunk * task.choice.head_chunk);
  item.first_head = item.first_kv_head * task.group + chunk * task.choice.head_chunk;
  return item.positions > 0;
}

// The query head of a tile's row, and its row of q.
struct RowPlace {
  int32_t query;  // row of q
  int32_t head;
};
inline RowPlace place_of(const Task& task, const WorkItem& item, int32_t row) {
  const int32_t in_kv_head = item.positions * item.heads;
  const int32_t kv_head = row / in_kv_head;
  const int32_t rest = row % in_kv_head;
  return {item.first_query + rest / item.heads, item.first_head + kv_head * task.group + rest % item.heads};
}

// o is not cleared: a row's first block finds the maximum at -inf, so its factor is 0, and engines take 0 times
// anything, garbage included, for 0. A row without a block keeps its garbage and a sum of 0, which says so.
template <class S>
inline void reset_range(TileState& t) {
  for (int32_t i = 0; i < t.rows * 16; i += S::kWidth) S::store(t.l + i, S::zero());
  for (int32_t r = 0; r < t.rows; ++r) t.m[r] = kEmpty;
}

// The sum over a row's lanes, in the one order.
template <class S>
inline float row_sum(const float* lanes) {
  typename S::F sum = S::load(lanes);
  for (int i = S::kWidth; i < 16; i += S::kWidth) sum = S::add(sum, S::load(lanes + i));
  return S::reduce_add(sum);
}

// total := total (+) split, weighted by their maxima; a split without keys changes nothing.
template <class S>
inline void fold_row(float* total_o, float& total_m, float& total_l, const float* o, float m, float l, int32_t dim) {
  if (l == 0.0f) return;
  if (total_l == 0.0f) {
    std::memcpy(total_o, o, sizeof(float) * static_cast<size_t>(dim));
    total_m = m;
    total_l = l;
    return;
  }
  const float top = total_m > m ? total_m : m;
  const float keep = S::first(simd::exp2<S>(S::set1(total_m - top)));
  const float take = S::first(simd::exp2<S>(S::set1(m - top)));
  const typename S::F keep_v = S::set1(keep), take_v = S::set1(take);
  for (int32_t i = 0; i < dim; i += S::kWidth)
    S::store(total_o + i, S::fma(S::load(o + i), take_v, S::mul(S::load(total_o + i), keep_v)));
  total_m = top;
  total_l = total_l * keep + l * take;
}

// After a range: its sums become the total (the first time, by exchanging the arrays) or are folded into it.
template <class S>
inline void end_range(TileState& t, bool first) {
  if (first) {
    float* const spare_o = t.total_o;
    float* const spare_m = t.total_m;
    t.total_o = t.o;
    t.total_m = t.m;
    t.o = spare_o;
    t.m = spare_m;
    for (int32_t r = 0; r < t.rows; ++r) t.total_l[r] = row_sum<S>(t.l + r * 16);
    return;
  }
  for (int32_t r = 0; r < t.rows; ++r)
    fold_row<S>(t.total_o + r * t.value_dim, t.total_m[r], t.total_l[r], t.o + r * t.value_dim, t.m[r],
                row_sum<S>(t.l + r * 16), t.value_dim);
}

template <class S, Dtype T>
inline void write_row_as(std::byte* out, const float* o, float weight, int32_t dim) {
  const typename S::F w = S::set1(weight);
  for (int32_t i = 0; i < dim; i += S::kWidth) S::template store_as<T>(out + i * size_of(T), S::mul(S::load(o + i), w));
}

// The row's result from its sums: division, sink, value scale, log-sum-exp.
template <class S>
inline void finish_row(const AttendArgs& args, RowPlace place, const float* o, float m, float l) {
  float weight = 0.0f;
  if (l != 0.0f) {
    if (args.sinks) {
      const float sink = args.sinks[place.head] * kLog2e;
      const float top = m > sink ? m : sink;
      const float rescale = std::exp2(m - top);
      weight = rescale / (l * rescale + std::exp2(sink - top));
    } else {
      weight = 1.0f / l;
    }
    weight *= args.kv.value_scale;
  }
  std::byte* out = args.out.at(place.query, place.head);
  const int32_t dim = args.kv.value_dim;
  if (l == 0.0f)
    std::memset(out, 0, static_cast<size_t>(dim) * static_cast<size_t>(size_of(args.out.type)));
  else if (args.out.type == Dtype::f32)
    write_row_as<S, Dtype::f32>(out, o, weight, dim);
  else if (args.out.type == Dtype::bf16)
    write_row_as<S, Dtype::bf16>(out, o, weight, dim);
  else
    write_row_as<S, Dtype::f16>(out, o, weight, dim);
  if (args.lse) args.lse[place.head * args.q.rows + place.query] = l == 0.0f ? kEmpty : (m + std::log2(l)) * kLn2;
}

struct PartialArrays {
  float* out;  // [rows, value dim]
  float* max;
  float* sum;
};
inline PartialArrays partials_of(const Task& task) {
  const MetadataArena& arena = *task.args.arena;
  return {arena.floats(Buf::work_partial_out), arena.floats(Buf::work_partial_max),
          arena.floats(Buf::work_partial_sum)};
}
// Row of the workspace for a split's (position, head).
inline int64_t partial_row(const Task& task, int64_t split, int32_t position, int32_t head) {
  return (split * task.choice.positions + position) * task.args.q.heads + head;
}

template <class Engine>
class Walk {
  using S = typename Engine::Simd;

 public:
  Walk(const Task& task, const WorkItem& item, std::byte* scratch) : task_(task), item_(item), keys_(task.args.keys) {
    const kv::LayerKv& kv = task.args.kv;
    carve(tile_, scratch, item.kv_heads * item.positions * item.heads, kv.key_dim, kv.value_dim);
    const float scale = task.args.scale * kv.key_scale;
    tile_.softcap = task.args.softcap;
    tile_.score_scale = task.args.softcap > 0 ? scale / task.args.softcap : scale * kLog2e;
    const int64_t row = item.sequence;
    table_ = keys_.pages + (keys_.rows ? keys_.rows[row].value : row) * keys_.stride +
             (keys_.first_page ? keys_.first_page[row] : 0);
    set_bounds();
  }

  void run() {
    Engine::load_queries(task_, item_, tile_);
    if (item_.range >= 0) {
      walk_range(item_.range);
      store_partial();
      return;
    }
    bool first = true;
    for (int32_t range = low_ / kRange; range * kRange < high_; ++range, first = false) {
      walk_range(range);
      end_range<S>(tile_, first);
    }
    if (first) {  // no row sees a key
      for (int32_t r = 0; r < tile_.rows; ++r) tile_.total_l[r] = 0.0f;
    }
    for (int32_t r = 0; r < tile_.rows; ++r)
      finish_row<S>(task_.args, place_of(task_, item_, r), tile_.total_o + r * tile_.value_dim, tile_.total_m[r],
                    tile_.total_l[r]);
  }

 private:
  // What each row sees: [low, high). Positions follow from the last query of the sequence, which is at its end.
  void set_bounds() {
    const int32_t queries = keys_.cu_q[item_.sequence + 1] - keys_.cu_q[item_.sequence];
    const int32_t first = item_.first_query - keys_.cu_q[item_.sequence];
    const int32_t end = item_.start + item_.length;
    low_ = std::numeric_limits<int32_t>::max();
    high_ = 0;
    for (int32_t i = 0; i < item_.positions; ++i) {
      int32_t high = end;
      if (keys_.causal) high = end - queries + first + i + 1;
      if (keys_.branch_lengths)
        high = end + min_of(keys_.branch_lengths[item_.first_query + i], keys_.most_branch_tokens);
      int32_t low = item_.start;
      if (task_.args.window >= 0) low = max_of(low, high - 1 - task_.args.window);
      high = max_of(high, low);
      low_ = min_of(low_, low);
      high_ = max_of(high_, high);
      for (int32_t h = 0; h < item_.kv_heads; ++h)
        for (int32_t g = 0; g < item_.heads; ++g) {
          const int32_t row = (h * item_.positions + i) * item_.heads + g;
          tile_.low[row] = low;
          tile_.high[row] = high;
        }
    }
    prefix_end_ = end;
    shared_end_ = keys_.branch_lengths ? floor_to(end, kBlock) : end;
  }

  const std::byte* key_at(int64_t slot) const {
    return task_.args.kv.keys + slot * task_.args.kv.key_stride * size_of(task_.args.kv.type);
  }
  const std::byte* value_at(int64_t slot) const {
    return task_.args.kv.values + slot * task_.args.kv.value_stride * size_of(task_.args.kv.type);
  }
  int64_t slot_at(int32_t position) const {
    const int32_t offset = position - item_.start;
    const int32_t shift = keys_.page_size.shift();
    return (static_cast<int64_t>(table_[offset >> shift].value) << shift) + (offset & (keys_.page_size.tokens() - 1));
  }

  // Addresses of the keys at positions [from, to) of the block at `position`; branch: the slots past the prefix.
  void find_keys(BlockKeys& block, int32_t position, int32_t from, int32_t to, const TokenSlot* branch) const {
    block.position = position;
    block.begin = from - position;
    block.end = to - position;
    int32_t at = from;
    const int32_t paged_end = min_of(to, prefix_end_);
    while (at < paged_end) {  // a page at a time: its tokens are adjacent
      const int32_t in_page = (at - item_.start) & (keys_.page_size.tokens() - 1);
      const int32_t run_end = min_of(paged_end, at - in_page + keys_.page_size.tokens());
      const int64_t slot = slot_at(at);
      const std::byte* key = key_at(slot);
      const std::byte* value = value_at(slot);
      const int64_t key_bytes = task_.args.kv.key_stride * size_of(task_.args.kv.type);
      const int64_t value_bytes = task_.args.kv.value_stride * size_of(task_.args.kv.type);
      for (; at < run_end; ++at, key += key_bytes, value += value_bytes) {
        block.key[at - position] = key;
        block.value[at - position] = value;
      }
    }
    for (; at < to; ++at) {
      const int64_t slot = branch[at - prefix_end_].value;
      block.key[at - position] = key_at(slot);
      block.value[at - position] = value_at(slot);
    }
    for (int32_t j = 0; j < block.begin; ++j) repeat_first(block, j);
    for (int32_t j = block.end; j < kBlock; ++j) repeat_first(block, j);
  }
  static void repeat_first(BlockKeys& block, int32_t j) {
    block.key[j] = block.key[block.begin];
    block.value[j] = block.value[block.begin];
  }

  void walk_range(int32_t range) {
    reset_range<S>(tile_);
    const int32_t begin = max_of(low_, range * kRange);
    const int32_t end = min_of(high_, (range + 1) * kRange);
    walk_shared(begin, min_of(end, shared_end_));
    if (keys_.branch_lengths)
      for (int32_t i = 0; i < item_.positions; ++i)
        walk_own(i, max_of(begin, shared_end_), min_of(tile_.high[i * item_.heads], (range + 1) * kRange));
    Engine::finish_range(tile_);
  }

  // The blocks of a range's shared part, in order.
  void walk_shared(int32_t begin, int32_t end) {
    if (begin >= end) return;
    BlockKeys blocks[kRange / kBlock];
    int32_t count = 0;
    for (int32_t position = floor_to(begin, kBlock); position < end; position += kBlock)
      find_keys(blocks[count++], position, max_of(begin, position), min_of(end, position + kBlock), nullptr);
    for (int32_t b = 0; b < count; ++b)
      attend_block(blocks[b], b + 1 < count ? &blocks[b + 1] : nullptr, 0, item_.positions);
  }

  void walk_own(int32_t i, int32_t begin, int32_t end) {
    begin = max_of(begin, tile_.low[i * item_.heads]);
    if (begin >= end) return;
    const TokenSlot* branch = keys_.branch_slots + (item_.first_query + i) * keys_.branch_stride;
    for (int32_t position = floor_to(begin, kBlock); position < end; position += kBlock) {
      BlockKeys block;
      find_keys(block, position, max_of(begin, position), min_of(end, position + kBlock), branch);
      attend_block(block, nullptr, i, i + 1);
    }
  }

  void attend_block(const BlockKeys& block, const BlockKeys* next, int32_t first_position, int32_t end_position) {
    for (int32_t h = 0; h < item_.kv_heads; ++h) {
      Prefetch keys, values;
      if (h + 1 < item_.kv_heads)
        prefetch_of(block, h + 1, keys, values);
      else if (next)
        prefetch_of(*next, 0, keys, values);
      const int32_t base = h * item_.positions * item_.heads;
      Engine::block(tile_, base + first_position * item_.heads, base + end_position * item_.heads, block, key_offset(h),
                    value_offset(h), keys, values);
    }
  }

  // While a head's block is computed, what comes after it is fetched.
  void prefetch_of(const BlockKeys& next, int32_t h, Prefetch& keys, Prefetch& values) const {
    const kv::LayerKv& kv = task_.args.kv;
    keys = {next.key, key_offset(h), kv.key_dim * size_of(kv.type), 0, kBlock};
    values = {next.value, value_offset(h), kv.value_dim * size_of(kv.type), 0, kBlock};
  }

  // Bytes from a token's first head to the item's kv head h.
  int64_t key_offset(int32_t h) const {
    return int64_t{item_.first_kv_head + h} * task_.args.kv.key_dim * size_of(task_.args.kv.type);
  }
  int64_t value_offset(int32_t h) const {
    return int64_t{item_.first_kv_head + h} * task_.args.kv.value_dim * size_of(task_.args.kv.type);
  }

  void store_partial() {
    const PartialArrays partials = partials_of(task_);
    const int32_t tile_query = item_.first_query - keys_.cu_q[item_.sequence];
    for (int32_t r = 0; r < tile_.rows; ++r) {
      const RowPlace place = place_of(task_, item_, r);
      const int32_t position = place.query - keys_.cu_q[item_.sequence] - tile_query;
      const int64_t row = partial_row(task_, item_.split, position, place.head);
      partials.max[row] = tile_.m[r];
      partials.sum[row] = row_sum<S>(tile_.l + r * 16);
      std::memcpy(partials.out + row * tile_.value_dim, tile_.o + r * tile_.value_dim,
                  sizeof(float) * static_cast<size_t>(tile_.value_dim));
    }
  }

  const Task& task_;
  const WorkItem& item_;
  const KeyView& keys_;
  const PageId* table_;
  TileState tile_;
  int32_t low_;  // of all rows
  int32_t high_;
  int32_t prefix_end_;  // first position past the pages
  int32_t shared_end_;  // blocks below it are shared by the tile's rows
};

template <class Engine>
void run_item(const Task& task, int64_t index, std::byte* scratch) {
  WorkItem item;
  if (locate_item(task, index, item)) Walk<Engine>(task, item, scratch).run();
}

template <class S>
void combine_sequence(const Task& task, int64_t index, std::byte* scratch) {
  const KeyView& keys = task.args.keys;
  const int32_t kv_heads = task.args.kv.kv_heads;
  const int32_t b = static_cast<int32_t>(index / kv_heads);
  const int32_t kv_head = static_cast<int32_t>(index % kv_heads);
  const int32_t splits = keys.cu_splits[b + 1] - keys.cu_splits[b];
  if (splits <= 0) return;
  const int32_t start = keys.starts_at_first_page ? keys.first_page[b] * keys.page_size.tokens() : 0;
  const int32_t ranges = static_cast<int32_t>(ranges_of(start, start + keys.lengths[b] + keys.most_branch_tokens));
  const int32_t queries = keys.cu_q[b + 1] - keys.cu_q[b];
  const PartialArrays partials = partials_of(task);
  const int32_t dim = task.args.kv.value_dim;
  float* total = reinterpret_cast<float*>(scratch);
  for (int32_t query = 0; query < queries; ++query)
    for (int32_t g = 0; g < task.group; ++g) {
      const int32_t head = kv_head * task.group + g;
      const int64_t first = keys.cu_splits[b] + static_cast<int64_t>(query / task.choice.positions) * ranges;
      float m = kEmpty, l = 0.0f;
      for (int32_t range = 0; range < ranges; ++range) {
        const int64_t row = partial_row(task, first + range, query % task.choice.positions, head);
        fold_row<S>(total, m, l, partials.out + row * dim, partials.max[row], partials.sum[row], dim);
      }
      finish_row<S>(task.args, {keys.cu_q[b] + query, head}, total, m, l);
    }
}

}  // namespace
}  // namespace quire::attn::cpu
