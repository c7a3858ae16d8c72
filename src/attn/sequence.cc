#include "attn/sequence.h"

#include <algorithm>

namespace quire::attn {
namespace {

bool is_padding(const StepView& step, int32_t b) { return b >= step.live(); }

int32_t row_tokens(const StepView& step, int32_t b) {
  const int32_t committed = step.inputs.lengths[b].value;
  switch (step.shape.mode) {
    case Mode::draft:
      return committed + step.limits.planes();
    case Mode::verify:
    case Mode::verify_tree:
      return committed + queries(step, b);
    default:
      return committed;
  }
}

int32_t visible_nodes(const StepView& step, int32_t branch_row) {
  const int32_t nodes = step.limits.draft_tokens;
  const uint8_t* mask = step.inputs.tree_mask + static_cast<int64_t>(branch_row) * nodes;
  return static_cast<int32_t>(std::count_if(mask, mask + nodes, [](uint8_t visible) { return visible != 0; }));
}

bool set_is_used(Set set, const StepShape& shape) {
  switch (set) {
    case Set::local:
      return shape.local;
    case Set::encoder:
      return shape.encoder;
    case Set::window:
      return shape.window_table.has_value();
    case Set::draft_branch:
      return shape.mode == Mode::draft_tree;
    case Set::verify_tree_branch:
      return shape.mode == Mode::verify_tree;
    case Set::work:
    case Set::split:  // of every mode's kernels
      return true;
    default:
      return set == main_set(shape.mode);
  }
}

}  // namespace

SequenceSet sequence_set(Set set) {
#define QUIRE_IDS(set)                                                                  \
  case Set::set:                                                                        \
    return {Buf::set##_live_count,   Buf::set##_cache_seqlens, Buf::set##_cu_seqlens_q, \
            Buf::set##_cu_seqlens_k, Buf::set##_request_row,   Buf::set##_first_page,   \
            Buf::set##_cu_items,     Buf::set##_cu_splits,     Buf::set##_page_table};
  switch (set) {
    QUIRE_IDS(decode)
    QUIRE_IDS(draft_prefix)
    QUIRE_IDS(verify)
    QUIRE_IDS(verify_tree_prefix)
    QUIRE_IDS(extend)
    QUIRE_IDS(draft_extend)
    QUIRE_IDS(window)
    default:
      break;
  }
#undef QUIRE_IDS
  throw CheckError(cat("the set ", to_string(set), " does not describe whole sequences"));
}

SequenceTarget sequence_target(const MetadataArena& arena, const SequenceSet& set, Buf page_table) {
  const auto counts = [&](Buf id) { return reinterpret_cast<int32_t*>(arena.find(id)); };
  return {.live_count = counts(set.live_count),
          .lengths = counts(set.cache_seqlens),
          .cu_q = counts(set.cu_seqlens_q),
          .cu_k = counts(set.cu_seqlens_k),
          .rows = reinterpret_cast<RequestRow*>(arena.find(set.request_row)),
          .first_page = counts(set.first_page),
          .items = counts(set.cu_items),
          .splits = counts(set.cu_splits),
          .table = reinterpret_cast<PageId*>(arena.find(page_table)),
          .table_stride = arena.shape(page_table).columns};
}

Set main_set(Mode mode) {
  switch (mode) {
    case Mode::decode:
    case Mode::draft:
      return Set::decode;
    case Mode::extend:
      return Set::extend;
    case Mode::draft_tree:
      return Set::draft_prefix;
    case Mode::verify:
      return Set::verify;
    case Mode::verify_tree:
      return Set::verify_tree_prefix;
    case Mode::draft_extend:
      return Set::draft_extend;
  }
  throw CheckError(cat("unknown mode ", static_cast<int>(mode)));
}

Buf main_page_table(Mode mode) {
  return mode == Mode::draft ? Buf::decode_page_table_draft_decode : sequence_set(main_set(mode)).page_table;
}

bool is_tree(Mode mode) { return mode == Mode::draft_tree || mode == Mode::verify_tree; }
bool is_draft(Mode mode) { return mode == Mode::draft || mode == Mode::draft_tree; }
bool has_extend_lengths(Mode mode) { return mode == Mode::extend || mode == Mode::draft_extend; }
bool has_extend_lengths(const StepShape& shape) { return has_extend_lengths(shape.mode) || shape.ragged; }

int32_t planes_of(Mode mode, const Limits& limits) { return is_draft(mode) ? limits.planes() : 1; }
int32_t sequence_planes(Mode mode, const Limits& limits) { return mode == Mode::draft ? limits.planes() : 1; }

int32_t most_branch_tokens(Mode mode, const Limits& limits) {
  if (mode == Mode::draft_tree) return limits.draft_steps;
  return mode == Mode::verify_tree ? limits.draft_tokens : 0;
}

int32_t branch_rows(Mode mode, const Limits& limits) {
  if (mode == Mode::draft_tree) return limits.topk;
  return mode == Mode::verify_tree ? limits.draft_tokens : 0;
}

bool is_used(const BufferSpec& buffer, const StepShape& shape, Device device) {
  if (buffer.role == Role::kernel || !is_read_on(buffer, device)) return false;
  if (buffer.role == Role::table && shape.form == Form::in_place) return false;
  if (!set_is_used(buffer.set, shape)) return false;
  if (buffer.id == Buf::window_branch_page_table) return shape.mode == Mode::verify_tree;
  const bool is_table_of_decode =
      buffer.id == Buf::decode_page_table || buffer.id == Buf::decode_page_table_draft_decode;
  return !is_table_of_decode || buffer.id == main_page_table(shape.mode);
}

int32_t added_keys(Mode mode, const Limits& limits) {
  return mode == Mode::draft ? 1 : mode == Mode::verify ? limits.draft_tokens : 0;
}

int32_t keys_in_pages(const StepView& step, int32_t b, int32_t plane) {
  if (is_padding(step, b)) return 1;
  const int32_t drafted = step.shape.mode == Mode::draft ? plane : 0;
  return step.inputs.lengths[b].value + added_keys(step.shape.mode, step.limits) + drafted;
}

int32_t queries_of_all(const StepShape& shape, const Limits& limits) {
  if (shape.ragged) return 0;
  switch (shape.mode) {
    case Mode::decode:
    case Mode::draft:
      return 1;
    case Mode::draft_tree:
      return limits.topk;
    case Mode::verify:
    case Mode::verify_tree:
      return limits.draft_tokens;
    default:
      return 0;
  }
}

int32_t queries(const StepView& step, int32_t b) {
  if (!has_extend_lengths(step.shape)) return queries_of_all(step.shape, step.limits);
  return is_padding(step, b) ? 0 : step.inputs.extend_lengths[b].value;
}

int32_t encoder_keys(const StepView& step, int32_t b) {
  return is_padding(step, b) ? 1 : step.inputs.encoder_lengths[b].value;
}

int32_t first_text_page(const StepView& step, int32_t b) {
  if (!step.shape.encoder || is_padding(step, b)) return 0;
  return step.limits.page_size.pages_for(encoder_keys(step, b));
}

int32_t row_pages(const StepView& step, int32_t b) {
  return first_text_page(step, b) + step.limits.page_size.pages_for(row_tokens(step, b));
}

int32_t branch_tokens(const StepView& step, int32_t branch_row, int32_t plane) {
  const bool may_be_padding = !step.shape.ragged;
  if (may_be_padding && is_padding(step, branch_row / branch_rows(step.shape.mode, step.limits))) return 1;
  return step.shape.mode == Mode::draft_tree ? plane + 1 : visible_nodes(step, branch_row);
}

int32_t all_branch_rows(const StepView& step) {
  if (!step.shape.ragged) return step.sequences() * branch_rows(step.shape.mode, step.limits);
  int32_t rows = 0;
  for (int32_t b = 0; b < step.live(); ++b) rows += queries(step, b);
  return rows;
}

int32_t chunk_count(const StepView& step, int32_t b) {
  if (is_padding(step, b)) return 1;
  const int32_t chunk = step.limits.chunk, total = queries(step, b);
  const int32_t prefix = keys_in_pages(step, b, 0) - total;
  const int32_t first = std::min(chunk - prefix % chunk, total);
  return 1 + (total - first + chunk - 1) / chunk;
}

Chunk chunk_of(const StepView& step, int32_t b, int32_t index) {
  if (is_padding(step, b)) return {.start = 0, .keys = 1, .queries = queries(step, b)};
  const int32_t chunk = step.limits.chunk, total = queries(step, b), length = keys_in_pages(step, b, 0);
  const int32_t prefix = length - total;
  const int32_t first = std::min(chunk - prefix % chunk, total);
  const bool last = index + 1 == chunk_count(step, b);
  return {.start = (prefix / chunk + index) * chunk,
          .keys = last ? (length - 1) % chunk + 1 : chunk,
          .queries = index == 0 ? first : std::min(chunk, total - first - (index - 1) * chunk)};
}

int32_t live_chunks(const StepView& step) {
  int32_t chunks = 0;
  for (int32_t b = 0; b < step.live(); ++b) chunks += chunk_count(step, b);
  return chunks;
}

int32_t readable_chunks(const StepView& step) { return live_chunks(step) + step.sequences() - step.live(); }

}  // namespace quire::attn
