// Where a kernel finds the step that a writer wrote, for each kind of layer.
#include "attn/attention.h"
#include "attn/sequence.h"
#include "base/check.h"

namespace quire::attn {
namespace {

struct Tables {
  const kv::TableView& in_place;
  Buf materialised;
};

void use_tables(KeyView& view, const MetadataArena& arena, Form form, const Tables& tables, const RequestRow* rows,
                const int32_t* first_page) {
  if (form == Form::in_place) {
    view.pages = tables.in_place.pages;
    view.stride = tables.in_place.stride;
    view.rows = rows;
    view.first_page = first_page;
  } else {
    view.pages = arena.pages(tables.materialised);
    view.stride = arena.shape(tables.materialised).columns;
  }
}

// A GPU's kernels cut the work themselves.
void use_items(KeyView& view, const MetadataArena& arena, Buf items, Buf splits, int64_t plane) {
  if (arena.limits().device == Device::cuda) return;
  view.cu_items = arena.counts(items) + plane * arena.shape(items).columns;
  view.cu_splits = arena.counts(splits) + plane * arena.shape(splits).columns;
}

void use_branches(KeyView& view, const MetadataArena& arena, const StepShape& shape, Buf lengths, Buf slots,
                  int32_t plane) {
  view.branch_lengths = arena.counts(lengths) + plane * arena.shape(lengths).columns;
  view.branch_slots = arena.slots(slots);
  view.branch_stride = arena.shape(slots).columns;
  view.most_branch_tokens = most_branch_tokens(shape.mode, arena.limits());
}

KeyView empty_view(Set set, PageSize page_size) {
  return {.set = set,
          .live = nullptr,
          .cu_q = nullptr,
          .lengths = nullptr,
          .cu_items = nullptr,
          .cu_splits = nullptr,
          .pages = nullptr,
          .stride = 0,
          .rows = nullptr,
          .first_page = nullptr,
          .starts_at_first_page = false,
          .causal = true,
          .branch_lengths = nullptr,
          .branch_slots = nullptr,
          .branch_stride = 0,
          .most_branch_tokens = 0,
          .most_queries = 0,
          .query_rows = 0,
          .most_sequences = 0,
          .page_size = page_size,
          .most_keys = 0};
}

KeyView sequence_view(const MetadataArena& arena, const StepShape& shape, Set set, const Tables& tables) {
  const SequenceSet ids = sequence_set(set);
  const int64_t plane = shape.mode == Mode::draft ? shape.draft_step : 0;
  KeyView view = empty_view(set, arena.limits().page_size);
  view.live = arena.counts(ids.live_count);
  view.cu_q = arena.counts(ids.cu_seqlens_q);
  view.lengths = arena.counts(ids.cache_seqlens) + plane * arena.shape(ids.cache_seqlens).columns;
  use_items(view, arena, ids.cu_items, ids.cu_splits, plane);
  use_tables(view, arena, shape.form, tables, arena.rows(ids.request_row), arena.counts(ids.first_page));
  view.causal = !is_tree(shape.mode);  // every row of a tree sees the whole prefix
  return view;
}

KeyView full_view(const MetadataArena& arena, const StepShape& shape) {
  KeyView view = sequence_view(arena, shape, main_set(shape.mode), {shape.table, main_page_table(shape.mode)});
  if (shape.mode == Mode::draft_tree)
    use_branches(view, arena, shape, Buf::draft_branch_cache_seqlens, Buf::draft_branch_page_table, shape.draft_step);
  if (shape.mode == Mode::verify_tree)
    use_branches(view, arena, shape, Buf::verify_tree_branch_cache_seqlens, Buf::verify_tree_branch_page_table, 0);
  return view;
}

KeyView window_view(const MetadataArena& arena, const StepShape& shape) {
  KeyView view = sequence_view(arena, shape, Set::window, {*shape.window_table, Buf::window_page_table});
  if (shape.mode == Mode::verify_tree)
    use_branches(view, arena, shape, Buf::verify_tree_branch_cache_seqlens, Buf::window_branch_page_table, 0);
  return view;
}

KeyView local_view(const MetadataArena& arena, const StepShape& shape) {
  KeyView view = empty_view(Set::local, arena.limits().page_size);
  view.live = arena.counts(Buf::local_live_count);
  view.cu_q = arena.counts(Buf::local_local_query_start_loc);
  view.lengths = arena.counts(Buf::local_local_seqused_k);
  use_items(view, arena, Buf::local_cu_items, Buf::local_cu_splits, 0);
  use_tables(view, arena, shape.form, {shape.table, Buf::local_local_block_table}, arena.rows(Buf::local_request_row),
             arena.counts(Buf::local_first_page));
  view.starts_at_first_page = shape.form == Form::in_place;
  return view;
}

KeyView encoder_view(const MetadataArena& arena, const StepShape& shape) {
  const SequenceSet text = sequence_set(main_set(shape.mode));
  KeyView view = empty_view(Set::encoder, arena.limits().page_size);
  view.live = arena.counts(text.live_count);
  view.cu_q = arena.counts(text.cu_seqlens_q);
  view.lengths = arena.counts(Buf::encoder_encoder_lens_int32);
  use_items(view, arena, Buf::encoder_cu_items, Buf::encoder_cu_splits, 0);
  use_tables(view, arena, shape.form, {shape.table, Buf::encoder_encoder_page_table}, arena.rows(text.request_row),
             nullptr);
  view.causal = false;
  return view;
}

bool is_written(const StepShape& shape, LayerKind kind) {
  switch (kind) {
    case LayerKind::full:
      return true;
    case LayerKind::local:
      return shape.local;
    case LayerKind::window:
      return shape.window_table.has_value();
    case LayerKind::encoder:
      return shape.encoder;
  }
  return false;
}

// Of a text that is as long as it may be, with its drafts.
int32_t most_keys(const StepShape& shape, LayerKind kind, const Limits& limits) {
  if (kind == LayerKind::encoder) return limits.encoder_context;
  const int32_t shorter = shape.context ? limits.context - shape.context : 0;
  return limits.text_tokens() - shorter;
}

KeyView view_of(const MetadataArena& arena, const StepShape& shape, LayerKind kind) {
  switch (kind) {
    case LayerKind::local:
      return local_view(arena, shape);
    case LayerKind::window:
      return window_view(arena, shape);
    case LayerKind::encoder:
      return encoder_view(arena, shape);
    default:
      return full_view(arena, shape);
  }
}

}  // namespace

KeyView key_view(const MetadataArena& arena, const StepShape& shape, LayerKind kind) {
  check(is_written(shape, kind), "this ", to_string(shape.mode), " step is not written for layers of the kind ",
        to_string(kind));
  const int32_t planes = planes_of(shape.mode, arena.limits());
  check(!is_draft(shape.mode) || (shape.draft_step >= 0 && shape.draft_step < planes), to_string(shape.mode),
        " step: draft step ", shape.draft_step, " is not below ", planes);
  KeyView view = view_of(arena, shape, kind);
  view.most_queries = has_extend_lengths(shape) ? shape.sequence_rows : queries_of_all(shape, arena.limits());
  view.query_rows = shape.query_rows;
  view.most_sequences = shape.captured;
  view.most_keys = most_keys(shape, kind, arena.limits());
  return view;
}

}  // namespace quire::attn
