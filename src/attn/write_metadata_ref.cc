// The formulas, element by element, from sequence.h's account of one request. Slow and obviously right: what the fast
// writers are compared with.
#include <cstdint>

#include "attn/cpu_choice.h"
#include "attn/sequence.h"
#include "attn/write_metadata.h"

namespace quire::attn::ref {
namespace {

// The row and column of one element, which must lie in the buffer.
int32_t& at(const MetadataArena& arena, Buf id, int64_t row, int64_t column) {
  return arena.words(id)[static_cast<size_t>(row * arena.shape(id).columns + column)];
}

// --- how the work is cut

struct Sequence {
  int64_t tiles;
  int64_t keys;    // in pages, plus the most branch tokens
  int64_t ranges;  // that its key positions touch
};

int64_t tiles_of(int64_t query_count, const Limits& limits) {
  const int64_t positions = tile_positions(limits.heads, limits.kv_heads, limits.key_dim);
  return (query_count + positions - 1) / positions;
}

// sequence(i) describes the i-th of `count` live sequences. A GPU's kernels cut the work themselves.
template <class SequenceAt>
void write_items(const MetadataArena& arena, Buf items, Buf splits, int64_t plane, int32_t count, SequenceAt sequence) {
  const Limits& limits = arena.limits();
  if (limits.device == Device::cuda) return;
  int64_t total_keys = 0;
  for (int32_t i = 0; i < count; ++i) total_keys += sequence(i).tiles * sequence(i).keys;
  int64_t items_before = 0, splits_before = 0;
  for (int32_t i = 0; i <= count; ++i) {
    at(arena, items, plane, i) = static_cast<int32_t>(items_before);
    at(arena, splits, plane, i) = static_cast<int32_t>(splits_before);
    if (i == count) break;
    const Sequence s = sequence(i);
    const bool split = split_tile(s.keys, total_keys, limits.threads);
    items_before += split ? s.tiles * s.ranges : s.tiles;
    splits_before += split ? s.tiles * s.ranges : 0;
  }
}

// What a GPU's blocks count by begins at 0, and its kernels leave it there for the next layer.
void write_counters(const StepView& step, const MetadataArena& arena) {
  if (step.limits.device == Device::cpu) return;
  at(arena, Buf::split_next_tile, 0, 0) = 0;
  for (int32_t i = 0; i < kMostSplitBlocks; ++i) at(arena, Buf::split_arrivals, 0, i) = 0;
}

// --- sets of whole sequences

PageId page_of_row(const StepView& step, const kv::TableView& table, int32_t b, int64_t index) {
  if (b >= step.live()) return kv::kReservedPage;
  return table.pages[step.inputs.rows[b].value * table.stride + index];
}

TokenSlot slot_of_row(const StepView& step, const kv::TableView& table, int32_t b, int32_t position) {
  const int32_t page_tokens = step.limits.page_size.tokens();
  return step.limits.page_size.slot(page_of_row(step, table, b, position / page_tokens), position % page_tokens);
}

void write_requests(const StepView& step, const MetadataArena& arena, const SequenceSet& set) {
  at(arena, set.live_count, 0, 0) = step.live();
  int32_t queries_before = 0;
  for (int32_t b = 0; b < step.sequences(); ++b) {
    at(arena, set.request_row, 0, b) = b < step.live() ? step.inputs.rows[b].value : 0;
    at(arena, set.first_page, 0, b) = first_text_page(step, b);
    at(arena, set.cu_seqlens_q, 0, b) = queries_before;
    queries_before += queries(step, b);
  }
  at(arena, set.cu_seqlens_q, 0, step.sequences()) = queries_before;
}

void write_plane(const StepView& step, const MetadataArena& arena, const SequenceSet& set, int32_t plane) {
  const Mode mode = step.shape.mode;
  for (int32_t b = 0; b < step.sequences(); ++b) at(arena, set.cache_seqlens, plane, b) = keys_in_pages(step, b, plane);
  write_items(arena, set.cu_items, set.cu_splits, plane, step.live(), [&](int32_t b) {
    const int64_t keys = keys_in_pages(step, b, plane) + most_branch_tokens(mode, step.limits);
    return Sequence{tiles_of(queries(step, b), step.limits), keys, ranges_of(0, keys)};
  });
  if (step.shape.form == Form::in_place) return;
  int32_t keys_before = 0;
  for (int32_t b = 0; b < step.sequences(); ++b) {
    at(arena, set.cu_seqlens_k, plane, b) = keys_before;
    keys_before += keys_in_pages(step, b, plane);
  }
  at(arena, set.cu_seqlens_k, plane, step.sequences()) = keys_before;
}

void write_page_table(const StepView& step, const MetadataArena& arena, const kv::TableView& table, Buf target) {
  const int32_t last_plane = planes_of(step.shape.mode, step.limits) - 1;
  for (int32_t b = 0; b < step.sequences(); ++b)
    for (int32_t c = 0; c < step.limits.page_size.pages_for(keys_in_pages(step, b, last_plane)); ++c)
      at(arena, target, b, c) = page_of_row(step, table, b, first_text_page(step, b) + c).value;
}

void write_sequences(const StepView& step, const MetadataArena& arena, const SequenceSet& set,
                     const kv::TableView& table, Buf page_table) {
  write_requests(step, arena, set);
  for (int32_t plane = 0; plane < sequence_planes(step.shape.mode, step.limits); ++plane)
    write_plane(step, arena, set, plane);
  if (step.shape.form == Form::materialised) write_page_table(step, arena, table, page_table);
}

// --- branches

void write_tree_slots(const StepView& step, const MetadataArena& arena, const kv::TableView& table, Buf target) {
  const int32_t nodes = step.limits.draft_tokens;
  int32_t row = 0;
  for (int32_t b = 0; b < step.live(); ++b)
    for (const int32_t own = queries(step, b), end = row + own; row < end; ++row) {
      int32_t visible = 0;
      for (int32_t node = 0; node < own; ++node)
        if (step.inputs.tree_mask[int64_t{row} * nodes + node])
          at(arena, target, row, visible++) = slot_of_row(step, table, b, step.inputs.lengths[b].value + node).value;
    }
  for (; row < all_branch_rows(step); ++row) at(arena, target, row, 0) = 0;
}

void write_draft_slots(const StepView& step, const MetadataArena& arena) {
  const Limits& limits = step.limits;
  for (int32_t row = 0; row < step.sequences() * limits.topk; ++row) {
    if (row / limits.topk >= step.live()) {
      at(arena, Buf::draft_branch_page_table, row, 0) = 0;
      continue;
    }
    for (int32_t t = 0; t < limits.planes(); ++t)
      at(arena, Buf::draft_branch_page_table, row, t) =
          step.inputs.draft_slots[int64_t{row} * limits.draft_steps + t].value;
  }
}

void write_branch_lengths(const StepView& step, const MetadataArena& arena, Buf lengths, Buf cu_q, Buf cu_k) {
  const int32_t rows = all_branch_rows(step);
  for (int32_t plane = 0; plane < planes_of(step.shape.mode, step.limits); ++plane) {
    int32_t tokens_before = 0;
    for (int32_t row = 0; row <= rows; ++row) {
      if (step.shape.form == Form::materialised) {
        at(arena, cu_q, 0, row) = row;
        at(arena, cu_k, plane, row) = tokens_before;
      }
      if (row == rows) break;
      at(arena, lengths, plane, row) = branch_tokens(step, row, plane);
      tokens_before += branch_tokens(step, row, plane);
    }
  }
}

void write_branches(const StepView& step, const MetadataArena& arena) {
  if (step.shape.mode == Mode::draft_tree) {
    write_branch_lengths(step, arena, Buf::draft_branch_cache_seqlens, Buf::draft_branch_cu_seqlens_q,
                         Buf::draft_branch_cu_seqlens_k);
    write_draft_slots(step, arena);
  }
  if (step.shape.mode == Mode::verify_tree) {
    write_branch_lengths(step, arena, Buf::verify_tree_branch_cache_seqlens, Buf::verify_tree_branch_cu_seqlens_q,
                         Buf::verify_tree_branch_cu_seqlens_k);
    write_tree_slots(step, arena, step.shape.table, Buf::verify_tree_branch_page_table);
  }
}

// --- local chunks and the encoder

struct Placed {
  int32_t request;
  Chunk chunk;
};

Placed chunk_at(const StepView& step, int32_t index) {
  int32_t b = 0;
  for (; index >= chunk_count(step, b); ++b) index -= chunk_count(step, b);
  return {b, chunk_of(step, b, index)};
}

void write_chunk(const StepView& step, const MetadataArena& arena, int32_t index) {
  const auto [b, chunk] = chunk_at(step, index);
  const int32_t first_page = chunk.start / step.limits.page_size.tokens();
  at(arena, Buf::local_local_seqused_k, 0, index) = chunk.keys;
  at(arena, Buf::local_request_row, 0, index) = b < step.live() ? step.inputs.rows[b].value : 0;
  at(arena, Buf::local_first_page, 0, index) = first_page;
  if (step.shape.form == Form::in_place) return;
  for (int32_t c = 0; c < step.limits.page_size.pages_for(chunk.keys); ++c)
    at(arena, Buf::local_local_block_table, index, c) = page_of_row(step, step.shape.table, b, first_page + c).value;
}

void write_local(const StepView& step, const MetadataArena& arena) {
  const int32_t chunks = readable_chunks(step);
  at(arena, Buf::local_live_count, 0, 0) = live_chunks(step);
  int32_t queries_before = 0;
  for (int32_t index = 0; index < chunks; ++index) {
    at(arena, Buf::local_local_query_start_loc, 0, index) = queries_before;
    queries_before += chunk_at(step, index).chunk.queries;
    write_chunk(step, arena, index);
  }
  at(arena, Buf::local_local_query_start_loc, 0, chunks) = queries_before;
  write_items(arena, Buf::local_cu_items, Buf::local_cu_splits, 0, live_chunks(step), [&](int32_t index) {
    const Chunk chunk = chunk_at(step, index).chunk;
    // A materialised row begins at its chunk, so its reader counts positions from there.
    const int64_t first = step.shape.form == Form::in_place ? chunk.start : 0;
    return Sequence{tiles_of(chunk.queries, step.limits), chunk.keys, ranges_of(first, first + chunk.keys)};
  });
}

void write_encoder(const StepView& step, const MetadataArena& arena) {
  for (int32_t b = 0; b < step.sequences(); ++b)
    at(arena, Buf::encoder_encoder_lens_int32, 0, b) = encoder_keys(step, b);
  write_items(arena, Buf::encoder_cu_items, Buf::encoder_cu_splits, 0, step.live(), [&](int32_t b) {
    const int64_t keys = encoder_keys(step, b);
    return Sequence{tiles_of(queries(step, b), step.limits), keys, ranges_of(0, keys)};
  });
  if (step.shape.form == Form::in_place) return;
  int32_t keys_before = 0;
  for (int32_t b = 0; b < step.sequences(); ++b) {
    at(arena, Buf::encoder_encoder_cu_seqlens_k, 0, b) = keys_before;
    keys_before += encoder_keys(step, b);
    for (int32_t c = 0; c < step.limits.page_size.pages_for(encoder_keys(step, b)); ++c)
      at(arena, Buf::encoder_encoder_page_table, b, c) = page_of_row(step, step.shape.table, b, c).value;
  }
  at(arena, Buf::encoder_encoder_cu_seqlens_k, 0, step.sequences()) = keys_before;
}

// --- the operations

struct Write {
  StepShape shape;
  StepInputs inputs;
  const MetadataArena* arena;
};

void run_write(const Write& write, Exec&) {
  const StepView step{write.shape, write.inputs, write.arena->limits()};
  const MetadataArena& arena = *write.arena;
  const Mode mode = step.shape.mode;
  write_sequences(step, arena, sequence_set(main_set(mode)), step.shape.table, main_page_table(mode));
  write_branches(step, arena);
  write_counters(step, arena);
  if (step.shape.local) write_local(step, arena);
  if (step.shape.encoder) write_encoder(step, arena);
  if (!step.shape.window_table) return;
  write_sequences(step, arena, sequence_set(Set::window), *step.shape.window_table, Buf::window_page_table);
  if (mode == Mode::verify_tree) write_tree_slots(step, arena, *step.shape.window_table, Buf::window_branch_page_table);
}

struct Follow {
  StepInputs inputs;
  const MetadataArena* arena;
  int32_t step;
  const int32_t* parents;
};

// Column by column, so that only one column of a request's branches is held aside while it is reordered.
void run_follow(const Follow& follow, Exec&) {
  const MetadataArena& arena = *follow.arena;
  const int32_t branches = arena.limits().topk;
  int32_t column[kMostDrafts];
  for (int32_t b = 0; b < *follow.inputs.live; ++b) {
    const int32_t first = b * branches;
    for (int32_t t = 0; t <= follow.step; ++t) {
      for (int32_t c = 0; c < branches; ++c) column[c] = at(arena, Buf::draft_branch_page_table, first + c, t);
      for (int32_t c = 0; c < branches; ++c)
        at(arena, Buf::draft_branch_page_table, first + c, t) = column[follow.parents[first + c]];
    }
    const int32_t next = follow.step + 1;
    for (int32_t c = 0; c < branches; ++c)
      at(arena, Buf::draft_branch_page_table, first + c, next) =
          follow.inputs.draft_slots[int64_t{first + c} * arena.limits().draft_steps + next].value;
  }
}

}  // namespace

void write_metadata(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, Exec& exec) {
  check_arena(shape, arena, arena.limits().device);
  exec.launch(&run_write, Write{shape, inputs, &arena});
}

void follow_parents(const StepShape& shape, const StepInputs& inputs, const MetadataArena& arena, int32_t step,
                    const int32_t* parents, Exec& exec) {
  check_follow(shape, arena.limits(), step);
  if (!exec.capturing()) check_parents(inputs, arena.limits(), parents);
  exec.launch(&run_follow, Follow{inputs, &arena, step, parents});
}

}  // namespace quire::attn::ref
