#include "attn/step.h"

#include <algorithm>
#include <cstddef>

#include "attn/sequence.h"
#include "base/check.h"

namespace quire::attn {

const char* to_string(Mode mode) {
  switch (mode) {
    case Mode::decode:
      return "decode";
    case Mode::extend:
      return "extend";
    case Mode::draft:
      return "draft";
    case Mode::draft_tree:
      return "draft_tree";
    case Mode::verify:
      return "verify";
    case Mode::verify_tree:
      return "verify_tree";
    case Mode::draft_extend:
      return "draft_extend";
  }
  return "unknown mode";
}

const char* to_string(LayerKind kind) {
  switch (kind) {
    case LayerKind::full:
      return "full";
    case LayerKind::local:
      return "local";
    case LayerKind::window:
      return "window";
    case LayerKind::encoder:
      return "encoder";
  }
  return "unknown kind of layer";
}

// --- the inputs' owner

namespace {

// Hands out consecutive arrays; without memory it only measures, so size and use cannot drift apart.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* take(int64_t elements) {
    static_assert(sizeof(T) <= kAlign && kAlign % alignof(T) == 0);
    T* taken = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += static_cast<size_t>(elements) * sizeof(T);
    return taken;
  }
  void align() { used_ = (used_ + kAlign - 1) / kAlign * kAlign; }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlign = 64;
  std::byte* base_;
  size_t used_ = 0;
};

// Numbers first, side by side in one line of a cache; then each array in lines of its own.
StepInputs carve_inputs(const Limits& l, Carver& carver) {
  StepInputs inputs{};
#define ONE(type, name)             \
  static_assert(sizeof(type) == 4); \
  inputs.name = carver.take<type>(1);
#define MANY(type, name, elements)
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
#define ONE(type, name)
#define MANY(type, name, elements) \
  carver.align();                  \
  inputs.name = carver.take<type>(elements);
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  return inputs;
}

size_t input_bytes(const Limits& limits) {
  limits.check();
  Carver measure(nullptr);
  carve_inputs(limits, measure);
  measure.align();
  return measure.used();
}

}  // namespace

StepInputBuffers::StepInputBuffers(const Limits& limits, Place place) : memory_(input_bytes(limits), place) {
  Carver carver(memory_.data());
  inputs_ = carve_inputs(limits, carver);
}

// --- the checks

namespace {

// check() with the mode before the text, composed only when it fails: a step is checked every time.
template <class... Parts>
void expect(const StepView& step, bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw CheckError(cat(to_string(step.shape.mode), " step: ", parts...));
}

// The same for request b.
template <class... Parts>
void expect(const StepView& step, int32_t b, bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw CheckError(cat(to_string(step.shape.mode), " step, request ", b, ": ", parts...));
}

void check_mode(const StepView& step) {
  const auto& [shape, inputs, limits] = step;
  const Mode mode = shape.mode;
  expect(step, shape.form == Form::in_place || limits.form == Form::materialised,
         "the limits are for steps in place, without tables: ", limits);
  if (is_draft(mode)) {
    expect(step, limits.draft_steps > 0, "the limits have no draft steps: ", limits);
    expect(step, shape.draft_step >= 0 && shape.draft_step < limits.planes(), "draft step ", shape.draft_step,
           " is not below ", limits.planes(), ", the draft steps with a forward pass");
  }
  expect(step, !shape.ragged || mode == Mode::verify_tree, "only trees are ragged");
  expect(step, !shape.ragged || shape.form == Form::in_place, "trees are ragged in place");
  if (mode == Mode::verify || mode == Mode::verify_tree)
    expect(step, limits.draft_tokens > 0, "the limits have no draft tokens: ", limits);
}

void check_layers(const StepView& step) {
  const auto& [shape, inputs, limits] = step;
  const bool plain = shape.mode == Mode::decode || shape.mode == Mode::extend;
  if (shape.local) {
    expect(step, plain, "local layers are for decode and extend");
    expect(step, limits.chunk > 0, "local layers, but the limits have no chunk: ", limits);
    // The first page of a chunk says where it starts in the text, so text must start with the row.
    expect(step, !shape.encoder, "local layers and encoder layers exclude each other");
  }
  if (shape.encoder) {
    expect(step, plain, "encoder layers are for decode and extend");
    expect(step, limits.encoder_context > 0, "encoder layers, but the limits have no encoder context: ", limits);
  }
  expect(step, !shape.window_table || shape.mode != Mode::draft_tree,
         "a window pool has no place for the slots of a draft tree");
}

void check_table(const StepView& step, const char* name, const kv::TableView& table) {
  expect(step, table.page_size == step.limits.page_size, name, " has pages of ", table.page_size.tokens(),
         " tokens, the limits have pages of ", step.limits.page_size.tokens());
  expect(step, table.pages != nullptr, name, " has no memory");
}

void check_counts(const StepView& step) {
  const auto& [shape, inputs, limits] = step;
  expect(step, shape.captured >= 1 && shape.captured <= limits.batch, "captured batch ", shape.captured,
         " is not between 1 and the limit ", limits.batch);
  expect(step, shape.context >= 0 && shape.context <= limits.context, "a context of ", shape.context,
         " is not between 0 and the limit ", limits.context);
  expect(step, inputs.live != nullptr, "no live count is given");
  expect(step, *inputs.live >= 0, "live count ", *inputs.live, " is negative");
  expect(step, *inputs.live <= shape.captured, "live count ", *inputs.live, " is above the captured batch ",
         shape.captured);
}

void check_given(const StepView& step) {
  const auto& [shape, inputs, limits] = step;
  expect(step, inputs.rows, "no request_rows are given");
  expect(step, inputs.lengths, "no lengths are given");
  expect(step, !has_extend_lengths(shape) || inputs.extend_lengths, "no extend_lengths are given");
  expect(step, shape.mode != Mode::draft_tree || inputs.draft_slots, "no draft_slots are given");
  expect(step, shape.mode != Mode::verify_tree || inputs.tree_mask, "no tree_mask is given");
  expect(step, !shape.encoder || inputs.encoder_lengths, "no encoder_lengths are given");
}

void check_lengths(const StepView& step, int32_t b) {
  const auto& [shape, inputs, limits] = step;
  const int32_t length = inputs.lengths[b].value;
  // Drafting and verifying may start from nothing committed; the other modes have their own queries among the keys.
  const bool may_be_empty = is_draft(shape.mode) || shape.mode == Mode::verify || shape.mode == Mode::verify_tree;
  const int32_t least = may_be_empty ? 0 : 1;
  expect(step, b, length >= least, "lengths[", b, "] = ", length, " is below ", least);
  expect(step, b, length <= limits.context, "lengths[", b, "] = ", length, " is past the context of ", limits.context);
  expect(step, b, shape.context == 0 || length <= shape.context, "lengths[", b, "] = ", length,
         " is past the shape's context of ", shape.context);
  if (has_extend_lengths(shape)) {
    const int32_t extend = inputs.extend_lengths[b].value;
    expect(step, b, extend >= 1, "extend_lengths[", b, "] = ", extend, " is below 1");
    if (shape.ragged)
      expect(step, b, extend <= limits.draft_tokens, "extend_lengths[", b, "] = ", extend, " nodes, the limits have ",
             limits.draft_tokens);
    else
      expect(step, b, extend <= length, "extend_lengths[", b, "] = ", extend, " is above lengths[", b, "] = ", length);
    expect(step, b, shape.sequence_rows == 0 || extend <= shape.sequence_rows, "extend_lengths[", b, "] = ", extend,
           " is above the shape's ", shape.sequence_rows, " rows of a sequence");
  }
  if (shape.encoder) {
    const int32_t encoder = inputs.encoder_lengths[b].value;
    expect(step, b, encoder >= 0, "encoder_lengths[", b, "] = ", encoder, " is below 0");
    expect(step, b, encoder <= limits.encoder_context, "encoder_lengths[", b, "] = ", encoder,
           " is past the encoder context of ", limits.encoder_context);
  }
}

void check_row(const StepView& step, int32_t b, const char* name, const kv::TableView& table) {
  const int32_t row = step.inputs.rows[b].value;
  expect(step, b, row >= 0 && row < table.rows, "request_rows[", b, "] = ", row, " is not a row of ", name,
         ", which has ", table.rows);
  expect(step, b, row != 0, "request_rows[", b, "] = 0 is the reserved row of ", name, ", where padding points");
  const int32_t needed = row_pages(step, b);
  expect(step, b, needed <= table.width, "lengths[", b, "] = ", step.inputs.lengths[b].value, " needs ", needed,
         " pages, a row of ", name, " has ", table.width);
}

void check_draft_slots(const StepView& step, int32_t b) {
  const int32_t each = step.limits.topk * step.limits.draft_steps;
  const int64_t slots = int64_t{step.shape.table.pool_pages} * step.limits.page_size.tokens();
  for (int64_t i = int64_t{b} * each; i < (int64_t{b} + 1) * each; ++i) {
    const int32_t slot = step.inputs.draft_slots[i].value;
    expect(step, b, slot >= 0 && slot < slots, "draft_slots[", i, "] = ", slot, " is outside the pool of ", slots,
           " slots");
  }
}

// A node that did not see itself would attend without its own key.
void check_mask(const StepView& step, int32_t b, int64_t first_row) {
  const int32_t nodes = queries(step, b);
  for (int32_t q = 0; q < nodes; ++q) {
    const int64_t row = first_row + q;
    const uint8_t* mask = step.inputs.tree_mask + row * step.limits.draft_tokens;
    for (int32_t j = 0; j < nodes; ++j)
      expect(step, b, mask[j] <= 1, "tree_mask[", row, "][", j, "] = ", static_cast<int>(mask[j]),
             " is neither 0 nor 1");
    expect(step, b, mask[q] == 1, "tree_mask[", row, "][", q, "] = 0: node ", q, " does not see itself");
  }
}

void check_request(const StepView& step, int32_t b) {
  check_lengths(step, b);
  check_row(step, b, "the request table", step.shape.table);
  if (step.shape.window_table) check_row(step, b, "the window table", *step.shape.window_table);
  if (step.shape.mode == Mode::draft_tree) check_draft_slots(step, b);
}

void check_masks(const StepView& step) {
  if (step.shape.mode != Mode::verify_tree) return;
  int64_t row = 0;
  for (int32_t b = 0; b < step.live(); row += queries(step, b++)) check_mask(step, b, row);
}

// Kernels write one row of `out` for each, so more than it has would be written past its end.
int64_t checked_query_rows(const StepView& step) {
  int64_t rows = 0;
  for (int32_t b = 0; b < step.live(); ++b) rows += queries(step, b);
  expect(step, rows <= step.shape.query_rows, "its requests have ", rows, " query rows, the shape has room for ",
         step.shape.query_rows);
  return rows;
}

void check_model_rows(const StepView& step, int64_t rows) {
  const auto& [shape, inputs, limits] = step;
  expect(step, rows <= limits.query_rows, "its requests have ", rows, " query rows, the limits allow ",
         limits.query_rows);
  expect(step, *inputs.query_rows == rows, "query_rows is ", *inputs.query_rows, ", its requests have ", rows);
  const int64_t slots = int64_t{shape.table.pool_pages} * limits.page_size.tokens();
  for (int64_t i = 0; i < rows; ++i)
    expect(step, inputs.slot_mapping[i].value >= 0 && inputs.slot_mapping[i].value < slots, "slot_mapping[", i,
           "] = ", inputs.slot_mapping[i].value, " is outside the pool of ", slots, " slots");
}

void check_wanted_rows(const StepView& step, int64_t rows) {
  const auto& [shape, inputs, limits] = step;
  const int32_t wanted = *inputs.wanted_count, logits = *inputs.logits_count;
  expect(step, wanted >= 0 && wanted <= limits.wanted_rows, "wanted_count is ", wanted, ", the limits allow ",
         limits.wanted_rows);
  expect(step, logits >= 0 && logits <= wanted, "logits_count is ", logits, ", of ", wanted, " wanted rows");
  for (int32_t i = 0; i < wanted; ++i)
    expect(step, inputs.wanted_rows[i] >= 0 && inputs.wanted_rows[i] < rows, "wanted_rows[", i,
           "] = ", inputs.wanted_rows[i], " is none of ", rows, " query rows");
}

// The mirror has the table's rows and width: what a run says is where apply_journal writes.
void check_journal(const StepView& step) {
  const auto& [shape, inputs, limits] = step;
  expect(step, inputs.journal_count, "no journal_count is given");
  const int32_t runs = *inputs.journal_count;
  expect(step, runs >= 0 && runs <= limits.batch, "journal_count is ", runs, ", the limits allow ", limits.batch);
  for (int32_t i = 0; i < runs; ++i) {
    const auto [row, first, count, begin] = inputs.journal_runs[i];
    expect(step, row.value > 0 && row.value < shape.table.rows, "journal_runs[", i, "] is of row ", row.value,
           ", the request table has 1 to ", shape.table.rows - 1);
    expect(step, first >= 0 && count >= 0 && first <= shape.table.width - count, "journal_runs[", i, "] has ", count,
           " entries from ", first, ", a row of the request table has ", shape.table.width);
    expect(step, begin >= 0 && begin <= limits.journal_pages - count, "journal_runs[", i, "] has ", count,
           " pages from ", begin, ", the limits allow ", limits.journal_pages);
  }
}

}  // namespace

void check_step(const StepShape& shape, const StepInputs& inputs, const Limits& limits) {
  const StepView step{shape, inputs, limits};
  check_mode(step);
  check_layers(step);
  check_table(step, "the request table", shape.table);
  if (shape.window_table) check_table(step, "the window table", *shape.window_table);
  check_counts(step);
  if (limits.journal_pages > 0) check_journal(step);
  if (step.live() > 0) check_given(step);
  for (int32_t b = 0; b < step.live(); ++b) check_request(step, b);
  check_masks(step);
  const int64_t rows = checked_query_rows(step);
  if (limits.query_rows == 0) return;
  check_model_rows(step, rows);
  check_wanted_rows(step, rows);
}

namespace {

const PageId* row_of(const StepView& step, int32_t b, const kv::TableView& table) {
  return table.pages + step.inputs.rows[b].value * table.stride;
}

void check_page(const StepView& step, int32_t b, int32_t index, PageId page, const char* name,
                const kv::TableView& table) {
  expect(step, b, page.value >= 0 && page.value < table.pool_pages, "page ", index, " of row ",
         step.inputs.rows[b].value, " of ", name, " is ", page.value, ", outside the pool of ", table.pool_pages);
  expect(step, b, page != kv::kReservedPage, "page ", index, " of row ", step.inputs.rows[b].value, " of ", name,
         " is the reserved page");
}

// Pages that left the window stand in the row as the reserved page; only a front of them may, and never the last.
int32_t pages_left_behind(const PageId* row, int32_t needed) {
  int32_t first = 0;
  while (first + 1 < needed && row[first] == kv::kReservedPage) ++first;
  return first;
}

void check_draft_pages(const StepView& step, int32_t b) {
  const int32_t each = step.limits.topk * step.limits.draft_steps;
  for (int64_t i = int64_t{b} * each; i < (int64_t{b} + 1) * each; ++i)
    expect(step, b, step.limits.page_size.page_of(step.inputs.draft_slots[i]) != kv::kReservedPage, "draft_slots[", i,
           "] = ", step.inputs.draft_slots[i].value, " lies in the reserved page");
}

}  // namespace

void check_pages(const StepShape& shape, const StepInputs& inputs, const Limits& limits) {
  const StepView step{shape, inputs, limits};
  for (int32_t b = 0; b < step.live(); ++b) {
    const int32_t needed = row_pages(step, b);
    const PageId* row = row_of(step, b, shape.table);
    for (int32_t i = 0; i < needed; ++i) check_page(step, b, i, row[i], "the request table", shape.table);
    if (shape.mode == Mode::draft_tree) check_draft_pages(step, b);
    if (!shape.window_table) continue;
    const PageId* window_row = row_of(step, b, *shape.window_table);
    for (int32_t i = pages_left_behind(window_row, needed); i < needed; ++i)
      check_page(step, b, i, window_row[i], "the window table", *shape.window_table);
  }
}

// --- what a reader may read

namespace {

struct Cell {
  Buf id;
  int64_t row;
  int32_t plane;  // -1: any
};

// Whether row `row` of a buffer with one row for each draft step is read; other buffers have only row 0.
bool reads_plane(const Cell& cell, int32_t planes) {
  return cell.row < planes && (planes == 1 || cell.plane < 0 || cell.row == cell.plane);
}

// The draft step whose keys bound what is read: the asked one, or the last.
int32_t bounding_plane(const Cell& cell, int32_t planes) { return cell.plane < 0 ? planes - 1 : cell.plane; }

int64_t readable_sequences(const StepView& step, const Cell& cell, const SequenceSet& set) {
  const int32_t planes = sequence_planes(step.shape.mode, step.limits);
  const int64_t sequences = step.sequences();
  const auto one_row = [&](int64_t elements) { return cell.row == 0 ? elements : 0; };
  const auto each_plane = [&](int64_t elements) { return reads_plane(cell, planes) ? elements : 0; };
  if (cell.id == set.live_count) return one_row(1);
  if (cell.id == set.cu_seqlens_q) return one_row(sequences + 1);
  if (cell.id == set.request_row || cell.id == set.first_page) return one_row(sequences);
  if (cell.id == set.cache_seqlens) return each_plane(sequences);
  if (cell.id == set.cu_seqlens_k) return each_plane(sequences + 1);
  if (cell.id == set.cu_items || cell.id == set.cu_splits) return each_plane(step.live() + 1);
  if (cell.row >= sequences) return 0;
  const int32_t b = static_cast<int32_t>(cell.row);
  return step.limits.page_size.pages_for(keys_in_pages(step, b, bounding_plane(cell, planes)));
}

int64_t readable_branches(const StepView& step, const Cell& cell) {
  const int32_t planes = planes_of(step.shape.mode, step.limits);
  const int64_t rows = all_branch_rows(step);
  switch (cell.id) {
    case Buf::draft_branch_cache_seqlens:
    case Buf::verify_tree_branch_cache_seqlens:
      return reads_plane(cell, planes) ? rows : 0;
    case Buf::draft_branch_cu_seqlens_k:
    case Buf::verify_tree_branch_cu_seqlens_k:
      return reads_plane(cell, planes) ? rows + 1 : 0;
    case Buf::draft_branch_cu_seqlens_q:
    case Buf::verify_tree_branch_cu_seqlens_q:
      return cell.row == 0 ? rows + 1 : 0;
    default:
      break;
  }
  if (cell.row >= rows) return 0;
  return branch_tokens(step, static_cast<int32_t>(cell.row), bounding_plane(cell, planes));
}

// Keys of the readable virtual sequence with the given number; 0 past the last.
int32_t keys_of_chunk(const StepView& step, int64_t index) {
  for (int32_t b = 0; b < step.sequences(); ++b) {
    const int32_t chunks = chunk_count(step, b);
    if (index < chunks) return chunk_of(step, b, static_cast<int32_t>(index)).keys;
    index -= chunks;
  }
  return 0;
}

int64_t readable_local(const StepView& step, const Cell& cell) {
  if (cell.id == Buf::local_local_block_table) return step.limits.page_size.pages_for(keys_of_chunk(step, cell.row));
  if (cell.row != 0) return 0;
  switch (cell.id) {
    case Buf::local_live_count:
      return 1;
    case Buf::local_local_query_start_loc:
      return readable_chunks(step) + 1;
    case Buf::local_cu_items:
    case Buf::local_cu_splits:
      return live_chunks(step) + 1;
    default:
      return readable_chunks(step);
  }
}

int64_t readable_encoder(const StepView& step, const Cell& cell) {
  if (cell.id == Buf::encoder_encoder_page_table) {
    if (cell.row >= step.sequences()) return 0;
    return step.limits.page_size.pages_for(encoder_keys(step, static_cast<int32_t>(cell.row)));
  }
  if (cell.row != 0) return 0;
  switch (cell.id) {
    case Buf::encoder_encoder_lens_int32:
      return step.sequences();
    case Buf::encoder_encoder_cu_seqlens_k:
      return step.sequences() + 1;
    default:
      return step.live() + 1;  // cu_items, cu_splits
  }
}

// Arrivals are counted for every tile that blocks share, tiles for all together.
int64_t readable_counters(const Cell& cell) {
  if (cell.row > 0) return 0;
  return cell.id == Buf::split_arrivals ? kMostSplitBlocks : 1;
}

}  // namespace

int64_t readable(const BufferSpec& buffer, const StepShape& shape, const StepInputs& inputs, const Limits& limits,
                 int64_t row, int32_t plane) {
  if (!is_used(buffer, shape, limits.device)) return 0;
  const StepView step{shape, inputs, limits};
  const Cell cell{buffer.id, row, plane};
  if (buffer.id == Buf::window_branch_page_table) return readable_branches(step, cell);
  switch (buffer.set) {
    case Set::draft_branch:
    case Set::verify_tree_branch:
      return readable_branches(step, cell);
    case Set::local:
      return readable_local(step, cell);
    case Set::encoder:
      return readable_encoder(step, cell);
    case Set::split:
      return readable_counters(cell);
    default:
      return readable_sequences(step, cell, sequence_set(buffer.set));
  }
}

}  // namespace quire::attn
