// One fused pass over the batch. A step in place is a few short loops over arrays of batch integers, which compilers
// vectorise; what is the same for all requests (the queries of every mode but extend, the draft steps of a chain) is
// computed once. Nothing here divides: page sizes are shifts, and the other divisors become reciprocals.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "attn/cpu_choice.h"
#include "attn/sequence.h"
#include "attn/write_metadata.h"

namespace quire::attn::cpu {
namespace {

// floor(n / divisor) for 0 <= n < 2^31. Exact: n + 1/2 is at least half a divisor's reciprocal away from where the
// floor changes, and the product is off by less than 2^-51 of itself.
class Quotient {
 public:
  explicit Quotient(int32_t divisor) : reciprocal_(1.0 / divisor) {}
  int32_t operator()(int32_t n) const { return static_cast<int32_t>((n + 0.5) * reciprocal_); }

 private:
  double reciprocal_;
};

// --- how the work is cut

class Cut {
 public:
  explicit Cut(const Limits& limits)
      : threads_(limits.threads),
        positions_(tile_positions(limits.heads, limits.kv_heads, limits.key_dim)),
        tile_of_(positions_) {}

  int32_t tiles(int32_t queries) const { return tile_of_(queries + positions_ - 1); }
  bool splits(int64_t keys, int64_t total_keys) const { return split_tile(keys, total_keys, threads_); }

 private:
  int32_t threads_, positions_;
  Quotient tile_of_;
};

// Sequences whose work is to be cut; their lengths and queries have just been written.
struct Work {
  int32_t count;
  const int32_t* lengths;
  const int32_t* cu_q;
  int32_t branch;             // tokens that every row may have besides
  const int32_t* first_page;  // where positions start; null: at 0
  int32_t page_shift;
  int32_t* items;
  int32_t* splits;
};

void write_split_items(const Cut& cut, const Work& work, int64_t total_keys) {
  int32_t items = 0, splits = 0;
  for (int32_t i = 0; i < work.count; ++i) {
    const int32_t tiles = cut.tiles(work.cu_q[i + 1] - work.cu_q[i]);
    const int64_t keys = int64_t{work.lengths[i]} + work.branch;
    const int64_t first = work.first_page ? int64_t{work.first_page[i]} << work.page_shift : 0;
    const int32_t cells =
        cut.splits(keys, total_keys) ? tiles * static_cast<int32_t>(ranges_of(first, first + keys)) : 0;
    work.items[i] = items;
    work.splits[i] = splits;
    items += cells ? cells : tiles;
    splits += cells;
  }
  work.items[work.count] = items;
  work.splits[work.count] = splits;
}

// A longer sequence is split before a shorter one, so when the longest is not, the items are just the tiles.
void write_items(const Cut& cut, const Work& work) {
  int32_t items = 0, longest = 0;
  int64_t total_keys = 0;
  for (int32_t i = 0; i < work.count; ++i) {
    const int32_t tiles = cut.tiles(work.cu_q[i + 1] - work.cu_q[i]);
    const int32_t keys = work.lengths[i] + work.branch;
    longest = std::max(longest, keys);
    total_keys += int64_t{tiles} * keys;
    work.items[i] = items;
    work.splits[i] = 0;
    items += tiles;
  }
  work.items[work.count] = items;
  work.splits[work.count] = 0;
  if (cut.splits(longest, total_keys)) write_split_items(cut, work, total_keys);
}

// The same where all sequences have as many queries and the lengths are already summed up.
void write_even_items(const Cut& cut, const Work& work, int32_t queries, int32_t longest, int64_t sum) {
  const int32_t tiles = cut.tiles(queries);
  const int64_t total_keys = tiles * (sum + int64_t{work.count} * work.branch);
  if (cut.splits(int64_t{longest} + work.branch, total_keys)) return write_split_items(cut, work, total_keys);
  for (int32_t i = 0; i <= work.count; ++i) work.items[i] = i * tiles;
  std::fill_n(work.splits, work.count + 1, 0);
}

// --- the step, with what its mode makes of all requests alike

struct Step {
  Mode mode;
  bool materialised;
  bool encoder;
  int32_t live;
  int32_t captured;
  PageSize page_size;
  int32_t planes;      // of the main set
  int32_t added_keys;  // to the given length, at plane 0
  int32_t queries;     // of every request; 0: its extend length
  int32_t branch;      // most tokens of a row's own branch
  const StepInputs& in;
  const MetadataArena& arena;
  Cut cut;
};

Step make_step(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena) {
  const Limits& limits = arena.limits();
  return {.mode = shape.mode,
          .materialised = shape.form == Form::materialised,
          .encoder = shape.encoder,
          .live = *inputs.live,
          .captured = shape.captured,
          .page_size = limits.page_size,
          .planes = sequence_planes(shape.mode, limits),
          .added_keys = added_keys(shape.mode, limits),
          .queries = queries_of_all(shape, limits),
          .branch = most_branch_tokens(shape.mode, limits),
          .in = inputs,
          .arena = arena,
          .cut = Cut(limits)};
}

// --- helpers of the materialised form

void copy_pages(PageId* target, const kv::TableView& table, RequestRow row, int32_t first, int32_t count) {
  std::memcpy(target, table.pages + row.value * table.stride + first, static_cast<size_t>(count) * sizeof(PageId));
}

// sums[i] = values[0] + ... + values[i - 1], for i in [0, count].
void write_prefix_sum(const int32_t* values, int32_t count, int32_t* sums) {
  int32_t sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    sums[i] = sum;
    sum += values[i];
  }
  sums[count] = sum;
}

// Padding: length 1 on the reserved page.
template <class Entry>
void pad_table(Entry* table, int64_t stride, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) table[row * stride] = Entry{0};
}

// --- sets of whole sequences

struct Target : SequenceTarget {
  int32_t batch;
};

Target target_of(const MetadataArena& arena, const SequenceSet& set, Buf page_table) {
  return {sequence_target(arena, set, page_table), arena.limits().batch};
}

void write_first_pages(const Step& step, int32_t* first_page) {
  if (!step.encoder) {
    std::fill_n(first_page, step.live, 0);
    return;
  }
  for (int32_t b = 0; b < step.live; ++b) first_page[b] = step.page_size.pages_for(step.in.encoder_lengths[b].value);
}

Work work_of(const Step& step, const Target& to, int32_t plane) {
  return {.count = step.live,
          .lengths = to.lengths + int64_t{plane} * to.batch,
          .cu_q = to.cu_q,
          .branch = step.branch,
          .first_page = nullptr,
          .page_shift = 0,
          .items = to.items + int64_t{plane} * (to.batch + 1),
          .splits = to.splits + int64_t{plane} * (to.batch + 1)};
}

void write_even_sequences(const Step& step, const Target& to) {
  int32_t longest = 0, sum = 0;  // 32 bits hold the sum of a whole batch: the limits were checked
  for (int32_t b = 0; b < step.live; ++b) {
    const int32_t keys = step.in.lengths[b].value + step.added_keys;
    to.lengths[b] = keys;
    longest = std::max(longest, keys);
    sum += keys;
  }
  for (int32_t b = 0; b <= step.live; ++b) to.cu_q[b] = b * step.queries;
  for (int32_t plane = 1; plane < step.planes; ++plane) {
    int32_t* lengths = to.lengths + int64_t{plane} * to.batch;
    for (int32_t b = 0; b < step.live; ++b) lengths[b] = step.in.lengths[b].value + step.added_keys + plane;
  }
  for (int32_t plane = 0; plane < step.planes; ++plane)
    write_even_items(step.cut, work_of(step, to, plane), step.queries, longest + plane,
                     sum + int64_t{plane} * step.live);
}

void write_uneven_sequences(const Step& step, const Target& to) {
  std::memcpy(to.lengths, step.in.lengths, static_cast<size_t>(step.live) * sizeof(int32_t));
  int32_t queries = 0;
  for (int32_t b = 0; b < step.live; ++b) {
    to.cu_q[b] = queries;
    queries += step.in.extend_lengths[b].value;
  }
  to.cu_q[step.live] = queries;
  write_items(step.cut, work_of(step, to, 0));
}

void pad_sequences(const Step& step, const Target& to) {
  for (int32_t b = step.live; b < step.captured; ++b) {
    to.rows[b] = RequestRow{0};
    to.first_page[b] = 0;
    to.cu_q[b + 1] = to.cu_q[b] + step.queries;
  }
  for (int32_t plane = 0; plane < step.planes; ++plane) {
    int32_t* lengths = to.lengths + int64_t{plane} * to.batch;
    std::fill(lengths + step.live, lengths + step.captured, 1);
  }
  pad_table(to.table, to.table_stride, step.live, step.captured);
}

void materialise_sequences(const Step& step, const Target& to, const kv::TableView& table) {
  pad_sequences(step, to);
  for (int32_t plane = 0; plane < step.planes; ++plane)
    write_prefix_sum(to.lengths + int64_t{plane} * to.batch, step.captured, to.cu_k + int64_t{plane} * (to.batch + 1));
  const int32_t* longest_plane = to.lengths + int64_t{step.planes - 1} * to.batch;
  for (int32_t b = 0; b < step.live; ++b)
    copy_pages(to.table + b * to.table_stride, table, to.rows[b], to.first_page[b],
               step.page_size.pages_for(longest_plane[b]));
}

void write_sequences(const Step& step, const Target& to, const kv::TableView& table) {
  *to.live_count = step.live;
  std::memcpy(to.rows, step.in.rows, static_cast<size_t>(step.live) * sizeof(RequestRow));
  write_first_pages(step, to.first_page);
  if (step.queries)
    write_even_sequences(step, to);
  else
    write_uneven_sequences(step, to);
  if (step.materialised) materialise_sequences(step, to, table);
}

// --- the tree of a verification

// Eight mask bytes, each 0 or 1, as eight bits: the product moves byte i to bit 56 + i.
uint32_t bits_of_bytes(const uint8_t* bytes) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return static_cast<uint32_t>((word * 0x0102040810204080ull) >> 56);
}

// One past the last node that a mask row names.
int32_t end_of_mask(const uint8_t* mask, int32_t nodes) {
  int32_t end = nodes;
  for (; end % 8 != 0; --end)
    if (mask[end - 1]) return end;
  for (; end > 0; end -= 8)
    if (const uint32_t bits = bits_of_bytes(mask + end - 8)) return end - 8 + std::bit_width(bits);
  return 0;
}

// Slots of the visible nodes, in order. Every node's slot is stored where the next visible one belongs, and the place
// moves on only past visible ones: no branch to mispredict, and as the last node looked at is visible, no store lands
// past it.
int32_t compact_slots(const uint8_t* mask, int32_t nodes, const TokenSlot* slots, TokenSlot* out) {
  const int32_t end = end_of_mask(mask, nodes);
  int32_t visible = 0;
  for (int32_t node = 0; node < end; ++node) {
    out[visible] = slots[node];
    visible += mask[node];
  }
  return visible;
}

// The slots of positions [first, first + count) of a row.
void gather_slots(const kv::TableView& table, RequestRow row, int32_t first, int32_t count, TokenSlot* slots) {
  const PageId* pages = table.pages + row.value * table.stride;
  const int32_t shift = table.page_size.shift(), offset_mask = table.page_size.tokens() - 1;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = first + i;
    slots[i] = table.page_size.slot(pages[position >> shift], position & offset_mask);
  }
}

// The branch slots in one pool, and their counts.
void write_tree_slots(const Step& step, const kv::TableView& table, TokenSlot* out, int32_t* counts) {
  const int32_t nodes = step.arena.limits().draft_tokens;
  TokenSlot slots[kMostDrafts];
  int64_t row = 0;
  for (int32_t b = 0; b < step.live; ++b) {
    const int32_t own = step.queries ? nodes : step.in.extend_lengths[b].value;
    gather_slots(table, step.in.rows[b], step.in.lengths[b].value, own, slots);
    for (const int64_t end = row + own; row < end; ++row)
      counts[row] = compact_slots(step.in.tree_mask + row * nodes, own, slots, out + row * nodes);
  }
  if (step.materialised) pad_table(out, nodes, int64_t{step.live} * nodes, int64_t{step.captured} * nodes);
}

void write_iota(int32_t* out, int32_t end) {
  for (int32_t i = 0; i <= end; ++i) out[i] = i;
}

void write_verify_tree(const Step& step, const StepShape& shape) {
  const int32_t nodes = step.arena.limits().draft_tokens;
  int32_t* lengths = step.arena.counts(Buf::verify_tree_branch_cache_seqlens);
  write_tree_slots(step, shape.table, step.arena.slots(Buf::verify_tree_branch_page_table), lengths);
  if (shape.window_table)
    write_tree_slots(step, *shape.window_table, step.arena.slots(Buf::window_branch_page_table), lengths);
  if (!step.materialised) return;
  const int32_t rows = step.captured * nodes;
  std::fill(lengths + step.live * nodes, lengths + rows, 1);
  write_prefix_sum(lengths, rows, step.arena.counts(Buf::verify_tree_branch_cu_seqlens_k));
  write_iota(step.arena.counts(Buf::verify_tree_branch_cu_seqlens_q), rows);
}

// --- the branches of a draft tree

void write_draft_branches(const Step& step) {
  const Limits& limits = step.arena.limits();
  const int32_t planes = limits.planes(), stride = limits.draft_steps;
  const int32_t live_rows = step.live * limits.topk, rows = step.captured * limits.topk;
  TokenSlot* slots = step.arena.slots(Buf::draft_branch_page_table);
  for (int64_t row = 0; row < live_rows; ++row)
    std::copy_n(step.in.draft_slots + row * stride, planes, slots + row * stride);
  for (int32_t plane = 0; plane < planes; ++plane) {
    int32_t* lengths = step.arena.counts(Buf::draft_branch_cache_seqlens) + int64_t{plane} * limits.batch * limits.topk;
    std::fill_n(lengths, live_rows, plane + 1);
    if (!step.materialised) continue;
    std::fill(lengths + live_rows, lengths + rows, 1);
    write_prefix_sum(
        lengths, rows,
        step.arena.counts(Buf::draft_branch_cu_seqlens_k) + plane * (int64_t{limits.batch} * limits.topk + 1));
  }
  if (!step.materialised) return;
  pad_table(slots, stride, live_rows, rows);
  write_iota(step.arena.counts(Buf::draft_branch_cu_seqlens_q), rows);
}

// --- local chunks

struct LocalTarget {
  int32_t* cu_q;
  int32_t* lengths;
  RequestRow* rows;
  int32_t* first_page;
};

// Where the next virtual sequence goes.
struct LocalCursor {
  int32_t chunk = 0;
  int32_t query = 0;
};

// The virtual sequences of one request: one for each chunk that positions [position, end) touch.
LocalCursor write_request_chunks(const LocalTarget& to, LocalCursor at, RequestRow row, int32_t position, int32_t end,
                                 int32_t start, const Limits& limits) {
  for (; position < end; start += limits.chunk, ++at.chunk) {
    const int32_t stop = std::min(start + limits.chunk, end);
    to.cu_q[at.chunk] = at.query;
    to.lengths[at.chunk] = stop - start;
    to.rows[at.chunk] = row;
    to.first_page[at.chunk] = start >> limits.page_size.shift();
    at.query += stop - position;
    position = stop;
  }
  return at;
}

int32_t write_live_chunks(const Step& step, const LocalTarget& to) {
  const Limits& limits = step.arena.limits();
  const Quotient chunk_of(limits.chunk);
  LocalCursor at;
  for (int32_t b = 0; b < step.live; ++b) {
    const int32_t end = step.in.lengths[b].value;
    const int32_t first = end - (step.queries ? step.queries : step.in.extend_lengths[b].value);
    at = write_request_chunks(to, at, step.in.rows[b], first, end, chunk_of(first) * limits.chunk, limits);
  }
  to.cu_q[at.chunk] = at.query;
  return at.chunk;
}

void materialise_local(const Step& step, const LocalTarget& to, int32_t live_chunks, const kv::TableView& table) {
  PageId* blocks = step.arena.pages(Buf::local_local_block_table);
  const int64_t stride = step.arena.shape(Buf::local_local_block_table).columns;
  for (int32_t i = 0; i < live_chunks; ++i)
    copy_pages(blocks + i * stride, table, to.rows[i], to.first_page[i], step.page_size.pages_for(to.lengths[i]));
  const int32_t chunks = live_chunks + step.captured - step.live;
  for (int32_t i = live_chunks; i < chunks; ++i) {
    to.cu_q[i + 1] = to.cu_q[i] + step.queries;
    to.lengths[i] = 1;
    to.rows[i] = RequestRow{0};
    to.first_page[i] = 0;
  }
  pad_table(blocks, stride, live_chunks, chunks);
}

void write_local(const Step& step, const kv::TableView& table) {
  const MetadataArena& arena = step.arena;
  const LocalTarget to{.cu_q = arena.counts(Buf::local_local_query_start_loc),
                       .lengths = arena.counts(Buf::local_local_seqused_k),
                       .rows = arena.rows(Buf::local_request_row),
                       .first_page = arena.counts(Buf::local_first_page)};
  const int32_t chunks = write_live_chunks(step, to);
  *arena.counts(Buf::local_live_count) = chunks;
  write_items(step.cut, {.count = chunks,
                         .lengths = to.lengths,
                         .cu_q = to.cu_q,
                         .branch = 0,
                         // A materialised row begins at its chunk, so its reader counts positions from there.
                         .first_page = step.materialised ? nullptr : to.first_page,
                         .page_shift = step.page_size.shift(),
                         .items = arena.counts(Buf::local_cu_items),
                         .splits = arena.counts(Buf::local_cu_splits)});
  if (step.materialised) materialise_local(step, to, chunks, table);
}

// --- the encoder

void write_encoder(const Step& step, const kv::TableView& table, const int32_t* cu_q) {
  const MetadataArena& arena = step.arena;
  int32_t* lengths = arena.counts(Buf::encoder_encoder_lens_int32);
  std::memcpy(lengths, step.in.encoder_lengths, static_cast<size_t>(step.live) * sizeof(int32_t));
  write_items(step.cut, {.count = step.live,
                         .lengths = lengths,
                         .cu_q = cu_q,
                         .branch = 0,
                         .first_page = nullptr,
                         .page_shift = 0,
                         .items = arena.counts(Buf::encoder_cu_items),
                         .splits = arena.counts(Buf::encoder_cu_splits)});
  if (!step.materialised) return;
  std::fill(lengths + step.live, lengths + step.captured, 1);
  write_prefix_sum(lengths, step.captured, arena.counts(Buf::encoder_encoder_cu_seqlens_k));
  PageId* pages = arena.pages(Buf::encoder_encoder_page_table);
  const int64_t stride = arena.limits().encoder_pages();
  for (int32_t b = 0; b < step.live; ++b)
    copy_pages(pages + b * stride, table, step.in.rows[b], 0, step.page_size.pages_for(lengths[b]));
  pad_table(pages, stride, step.live, step.captured);
}

// --- the operations

struct Write {
  StepShape shape;
  StepInputs inputs;
  const MetadataArena* arena;
};

void run_write(const Write& write, Exec&) {
  const StepShape& shape = write.shape;
  const MetadataArena& arena = *write.arena;
  const Step step = make_step(shape, write.inputs, arena);
  const Target main = target_of(arena, sequence_set(main_set(shape.mode)), main_page_table(shape.mode));
  write_sequences(step, main, shape.table);
  if (shape.window_table)
    write_sequences(step, target_of(arena, sequence_set(Set::window), Buf::window_page_table), *shape.window_table);
  if (shape.mode == Mode::verify_tree) write_verify_tree(step, shape);
  if (shape.mode == Mode::draft_tree) write_draft_branches(step);
  if (shape.local) write_local(step, shape.table);
  if (shape.encoder) write_encoder(step, shape.table, main.cu_q);
}

struct Follow {
  StepInputs inputs;
  const MetadataArena* arena;
  int32_t step;
  const int32_t* parents;
};

// Column by column, so that only one column of a request's branches is held aside while it is reordered.
void run_follow(const Follow& follow, Exec&) {
  const Limits& limits = follow.arena->limits();
  const int64_t branches = limits.topk, stride = limits.draft_steps;
  TokenSlot* slots = follow.arena->slots(Buf::draft_branch_page_table);
  TokenSlot column[kMostDrafts];
  const int32_t next = follow.step + 1;
  for (int64_t first = 0; first < *follow.inputs.live * branches; first += branches) {
    TokenSlot* rows = slots + first * stride;
    const int32_t* parents = follow.parents + first;
    for (int32_t t = 0; t < next; ++t) {
      for (int64_t c = 0; c < branches; ++c) column[c] = rows[c * stride + t];
      for (int64_t c = 0; c < branches; ++c) rows[c * stride + t] = column[parents[c]];
    }
    const TokenSlot* given = follow.inputs.draft_slots + first * stride;
    for (int64_t c = 0; c < branches; ++c) rows[c * stride + next] = given[c * stride + next];
  }
}

}  // namespace

void write_metadata(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  check_arena(shape, arena, Device::cpu);
  exec.launch(&run_write, Write{shape, inputs, &arena});
}

void follow_parents(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, int32_t step,
                    const int32_t* parents, Exec& exec) {
  check_follow(shape, arena.limits(), step);
  if (!exec.capturing()) check_parents(inputs, arena.limits(), parents);
  exec.launch(&run_follow, Follow{inputs, &arena, step, parents});
}

}  // namespace quire::attn::cpu
