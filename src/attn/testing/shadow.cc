#include "attn/testing/shadow.h"

#include <algorithm>
#include <optional>

#include "attn/attend_row_ref.h"
#include "attn/cpu_choice.h"
#include "attn/sequence.h"

namespace quire::attn::testing {
namespace {

// Neither is a count, page, slot or row of any world.
constexpr int32_t kFirstPattern = 0x7f7f7f7f;
constexpr int32_t kSecondPattern = -0x7e7e7e7f;

bool is_shadowed(const MetadataArena& arena, const BufferSpec& buffer) {
  return arena.has(buffer.id) && buffer.role != Role::kernel;
}

void fill(const MetadataArena& arena, int32_t pattern) {
  for (const BufferSpec& buffer : kBuffers) {
    if (!is_shadowed(arena, buffer)) continue;
    const std::span<int32_t> words = arena.words(buffer.id);
    std::fill(words.begin(), words.end(), pattern);
  }
}

// An element's name, made into text only when a check fails.
struct Named {
  Buf id;
  int64_t row;
  int64_t column;
};
std::string to_string(const Named& named) { return cat(named.id, "[", named.row, "][", named.column, "]"); }

}  // namespace

Shadow::Shadow(const MetadataArena& arena, const std::function<void()>& write) : arena_(arena), written_(kBufferCount) {
  fill(arena, kFirstPattern);
  write();
  for (const BufferSpec& buffer : kBuffers) {
    if (!is_shadowed(arena, buffer)) continue;
    for (const int32_t word : arena.words(buffer.id))
      written_[static_cast<size_t>(buffer.id)].push_back(word != kFirstPattern);
  }
  fill(arena, kSecondPattern);
  write();
  for (const BufferSpec& buffer : kBuffers) {
    if (!is_shadowed(arena, buffer)) continue;
    const std::span<const int32_t> words = arena.words(buffer.id);
    std::vector<bool>& written = written_[static_cast<size_t>(buffer.id)];
    for (size_t i = 0; i < words.size(); ++i)
      if (words[i] != kSecondPattern) written[i] = true;
  }
}

bool Shadow::written(Buf id, int64_t row, int64_t column) const {
  const Shape shape = arena_.shape(id);
  check(row >= 0 && row < shape.rows && column >= 0 && column < shape.columns, Named{id, row, column},
        " is outside the buffer, which is ", shape.rows, " x ", shape.columns);
  check(is_shadowed(arena_, spec(id)), "the shadow has no ", id, " for ", arena_.limits());
  return written_[static_cast<size_t>(id)][row * shape.columns + column];
}

int32_t Shadow::read(Buf id, int64_t row, int64_t column) const {
  if (!written(id, row, column))
    throw UnwrittenRead(cat(Named{id, row, column}, " is read and was not written in this step"));
  return arena_.words(id)[row * arena_.shape(id).columns + column];
}

namespace {

// Where a kind of layer finds its sequences.
struct SequenceBuffers {
  Buf live_count, lengths, cu_q, request_row, cu_items, cu_splits, page_table;
  std::optional<Buf> cu_k;
  std::optional<Buf> first_page;  // none: the sequence starts with its row
  const kv::TableView* table;     // what the materialised table was made from
  int32_t plane;                  // of lengths, cu_k, cu_items and cu_splits
  int32_t sequences;              // padding included
};

struct BranchBuffers {
  Buf lengths, cu_q, cu_k, slots;
  int32_t plane;
};

// The sequences of the step, as read; every element has passed the shadow. Positions count from a sequence's first
// key, also in a local chunk: its rows of the materialised table begin there.
struct Sequences {
  int32_t live;
  std::vector<int32_t> lengths;                // [sequences]
  std::vector<int32_t> cu_q;                   // [sequences + 1]
  std::vector<std::vector<PageId>> pages;      // [sequences][pages of its length]
  std::vector<std::vector<TokenSlot>> branch;  // [rows of sequences][its tokens]; empty: no branches
};

SequenceBuffers whole_sequences(const StepShape& shape, LayerKind kind) {
  const bool has_pool = kind == LayerKind::window && shape.window_table;
  const SequenceSet set = sequence_set(has_pool ? Set::window : main_set(shape.mode));
  return {.live_count = set.live_count,
          .lengths = set.cache_seqlens,
          .cu_q = set.cu_seqlens_q,
          .request_row = set.request_row,
          .cu_items = set.cu_items,
          .cu_splits = set.cu_splits,
          .page_table = has_pool ? set.page_table : main_page_table(shape.mode),
          .cu_k = set.cu_seqlens_k,
          .first_page = set.first_page,
          .table = has_pool ? &*shape.window_table : &shape.table,
          .plane = shape.mode == Mode::draft ? shape.draft_step : 0,
          .sequences = shape.captured};
}

SequenceBuffers chunks(const StepShape& shape, const Shadow& shadow) {
  const int32_t padding = shape.captured - shadow.read(sequence_set(main_set(shape.mode)).live_count, 0, 0);
  return {.live_count = Buf::local_live_count,
          .lengths = Buf::local_local_seqused_k,
          .cu_q = Buf::local_local_query_start_loc,
          .request_row = Buf::local_request_row,
          .cu_items = Buf::local_cu_items,
          .cu_splits = Buf::local_cu_splits,
          .page_table = Buf::local_local_block_table,
          .cu_k = {},
          .first_page = Buf::local_first_page,
          .table = &shape.table,
          .plane = 0,
          .sequences = shadow.read(Buf::local_live_count, 0, 0) + padding};
}

SequenceBuffers encoder_sequences(const StepShape& shape) {
  SequenceBuffers buffers = whole_sequences(shape, LayerKind::full);
  buffers.lengths = Buf::encoder_encoder_lens_int32;
  buffers.cu_k = Buf::encoder_encoder_cu_seqlens_k;
  buffers.cu_items = Buf::encoder_cu_items;
  buffers.cu_splits = Buf::encoder_cu_splits;
  buffers.page_table = Buf::encoder_encoder_page_table;
  buffers.first_page = {};
  return buffers;
}

SequenceBuffers buffers_of(const StepShape& shape, LayerKind kind, const Shadow& shadow) {
  if (kind == LayerKind::local) return chunks(shape, shadow);
  if (kind == LayerKind::encoder) return encoder_sequences(shape);
  return whole_sequences(shape, kind);
}

std::optional<BranchBuffers> branches_of(const StepShape& shape, LayerKind kind) {
  if (shape.mode == Mode::draft_tree)
    return BranchBuffers{Buf::draft_branch_cache_seqlens, Buf::draft_branch_cu_seqlens_q,
                         Buf::draft_branch_cu_seqlens_k, Buf::draft_branch_page_table, shape.draft_step};
  if (shape.mode != Mode::verify_tree) return {};
  const bool has_pool = kind == LayerKind::window && shape.window_table;
  return BranchBuffers{Buf::verify_tree_branch_cache_seqlens, Buf::verify_tree_branch_cu_seqlens_q,
                       Buf::verify_tree_branch_cu_seqlens_k,
                       has_pool ? Buf::window_branch_page_table : Buf::verify_tree_branch_page_table, 0};
}

class Reader {
 public:
  Reader(const AttendArgs& args, const StepShape& shape, const Shadow& shadow)
      : args_(args), shape_(shape), limits_(args.arena->limits()), shadow_(shadow) {}

  Sequences read(const SequenceBuffers& buffers, const std::optional<BranchBuffers>& branches) {
    read_lengths(buffers);
    read_pages(buffers);
    check_table_in_place(buffers);
    if (branches) read_branches(*branches);
    if (limits_.device == Device::cpu)
      check_items(buffers);
    else
      check_counters();
    return sequences_;
  }

 private:
  // cu[0] is 0 and its steps are the lengths.
  void check_prefix_sum(Buf cu, int32_t plane, Buf lengths, int32_t count, auto length_of) const {
    check(shadow_.read(cu, plane, 0) == 0, Named{cu, plane, 0}, " is not 0");
    for (int32_t b = 0; b < count; ++b) {
      const int32_t step = shadow_.read(cu, plane, b + 1) - shadow_.read(cu, plane, b);
      check(step == length_of(b), Named{cu, plane, b + 1}, " adds ", step, " and ", lengths, "[", plane, "][", b,
            "] is ", length_of(b));
    }
  }

  void read_lengths(const SequenceBuffers& buffers) {
    sequences_.live = shadow_.read(buffers.live_count, 0, 0);
    check(sequences_.live >= 0 && sequences_.live <= buffers.sequences, buffers.live_count, " is ", sequences_.live,
          " of ", buffers.sequences, " sequences");
    for (int32_t b = 0; b < buffers.sequences; ++b) {
      sequences_.lengths.push_back(shadow_.read(buffers.lengths, buffers.plane, b));
      check(sequences_.lengths[b] >= 0, Named{buffers.lengths, buffers.plane, b}, " is negative");
      check(b < sequences_.live || sequences_.lengths[b] == 1, Named{buffers.lengths, buffers.plane, b},
            " is padding and ", sequences_.lengths[b], ", not 1");
    }
    for (int32_t b = 0; b <= buffers.sequences; ++b) {
      sequences_.cu_q.push_back(shadow_.read(buffers.cu_q, 0, b));
      check(sequences_.cu_q[b] >= (b ? sequences_.cu_q[b - 1] : 0) && sequences_.cu_q[b] <= args_.q.rows,
            Named{buffers.cu_q, 0, b}, " = ", sequences_.cu_q[b], " falls, or is past the ", args_.q.rows,
            " query rows");
    }
    check(sequences_.cu_q[0] == 0, Named{buffers.cu_q, 0, 0}, " is not 0");
    if (buffers.cu_k)
      check_prefix_sum(*buffers.cu_k, buffers.plane, buffers.lengths, buffers.sequences,
                       [&](int32_t b) { return sequences_.lengths[b]; });
  }

  void read_pages(const SequenceBuffers& buffers) {
    for (int32_t b = 0; b < buffers.sequences; ++b) {
      std::vector<PageId>& pages = sequences_.pages.emplace_back();
      for (int32_t c = 0; c < limits_.page_size.pages_for(sequences_.lengths[b]); ++c) {
        pages.push_back({shadow_.read(buffers.page_table, b, c)});
        check_slot(limits_.page_size.slot(pages.back(), 0), buffers.page_table, b, c);
        check(b < sequences_.live || pages.back() == kv::kReservedPage, Named{buffers.page_table, b, c},
              " is padding and not the reserved page");
      }
    }
  }

  void check_slot(TokenSlot slot, Buf id, int64_t row, int64_t column) const {
    check(slot.value >= 0 && slot.value < args_.kv.slots, Named{id, row, column}, " leads to slot ", slot,
          ", outside the store of ", args_.kv.slots);
  }

  // The request table, read through (request_row, first_page), gives the pages of the materialised one.
  void check_table_in_place(const SequenceBuffers& buffers) {
    const kv::TableView& table = *buffers.table;
    for (int32_t b = 0; b < buffers.sequences; ++b) {
      const int32_t row = shadow_.read(buffers.request_row, 0, b);
      const int32_t first = buffers.first_page ? shadow_.read(*buffers.first_page, 0, b) : 0;
      const auto count = static_cast<int32_t>(sequences_.pages[b].size());
      check(row >= 0 && row < table.rows && first >= 0 && first + count <= table.width,
            Named{buffers.request_row, 0, b}, " = ", row, " and first page ", first, " with ", count,
            " pages lie outside the request table");
      if (b >= sequences_.live) continue;
      for (int32_t c = 0; c < count; ++c)
        check(table.pages[row * table.stride + first + c] == sequences_.pages[b][c], Named{buffers.page_table, b, c},
              " is page ", sequences_.pages[b][c], " and the request table has ",
              table.pages[row * table.stride + first + c]);
    }
  }

  void read_branches(const BranchBuffers& buffers) {
    const int32_t rows = sequences_.cu_q.back();
    for (int32_t row = 0; row < rows; ++row) {
      std::vector<TokenSlot>& branch = sequences_.branch.emplace_back();
      const int32_t tokens = shadow_.read(buffers.lengths, buffers.plane, row);
      for (int32_t t = 0; t < tokens; ++t) {
        branch.push_back({shadow_.read(buffers.slots, row, t)});
        check_slot(branch.back(), buffers.slots, row, t);
      }
    }
    check_prefix_sum(buffers.cu_q, 0, buffers.lengths, rows, [](int32_t) { return 1; });
    check_prefix_sum(buffers.cu_k, buffers.plane, buffers.lengths, rows,
                     [&](int32_t row) { return static_cast<int32_t>(sequences_.branch[row].size()); });
  }

  int64_t tiles_of(int32_t b) const {
    const int64_t positions = tile_positions(limits_.heads, limits_.kv_heads, limits_.key_dim);
    return (sequences_.cu_q[b + 1] - sequences_.cu_q[b] + positions - 1) / positions;
  }
  int64_t keys_of(int32_t b) const { return sequences_.lengths[b] + most_branch_tokens(shape_.mode, limits_); }

  // The division of work follows the rule of cpu_choice.h.
  void check_items(const SequenceBuffers& buffers) const {
    int64_t total = 0, items = 0, splits = 0;
    for (int32_t b = 0; b < sequences_.live; ++b) total += tiles_of(b) * keys_of(b);
    for (int32_t b = 0; b <= sequences_.live; ++b) {
      check_count(buffers.cu_items, buffers.plane, b, items);
      check_count(buffers.cu_splits, buffers.plane, b, splits);
      if (b == sequences_.live) break;
      const bool is_split = split_tile(keys_of(b), total, limits_.threads);
      const int64_t own = tiles_of(b) * (is_split ? ranges_of(0, keys_of(b)) : 1);
      items += own;
      splits += is_split ? own : 0;
    }
  }
  void check_count(Buf id, int32_t plane, int32_t b, int64_t expected) const {
    check(shadow_.read(id, plane, b) == expected, Named{id, plane, b}, " is ", shadow_.read(id, plane, b),
          ", and the split rule gives ", expected);
  }

  // What a GPU's blocks count by.
  void check_counters() const {
    check(shadow_.read(Buf::split_next_tile, 0, 0) == 0, Named{Buf::split_next_tile, 0, 0}, " is not 0");
    for (int32_t i = 0; i < kMostSplitBlocks; ++i)
      check(shadow_.read(Buf::split_arrivals, 0, i) == 0, Named{Buf::split_arrivals, 0, i}, " is not 0");
  }

  const AttendArgs& args_;
  const StepShape& shape_;
  const Limits& limits_;
  const Shadow& shadow_;
  Sequences sequences_;
};

void attend_sequence(const AttendArgs& args, const Sequences& sequences, int32_t b, bool sees_all) {
  const PageSize size = args.keys.page_size;
  const int64_t pages_end = sequences.lengths[b];
  const int64_t last = sequences.cu_q[b + 1];
  for (int64_t row = sequences.cu_q[b]; row < last; ++row) {
    int64_t end = pages_end;
    if (!sequences.branch.empty())
      end += static_cast<int64_t>(sequences.branch[row].size());
    else if (!sees_all)
      end -= last - 1 - row;
    attend_row_ref(args, row, windowed(0, end, end - 1, args.window), [&](int64_t position) {
      if (position >= pages_end) return sequences.branch[row][position - pages_end];
      const auto key = static_cast<int32_t>(position);
      return size.slot(sequences.pages[b][key >> size.shift()], key & (size.tokens() - 1));
    });
  }
}

}  // namespace

void attend_shadowed(const AttendArgs& args, const StepShape& shape, LayerKind kind, const Shadow& shadow) {
  check_args(args);
  check(shape.form == Form::materialised, "the shadow reads the materialised form");
  const Sequences sequences =
      Reader(args, shape, shadow).read(buffers_of(shape, kind, shadow), branches_of(shape, kind));
  for (int32_t b = 0; b < sequences.live; ++b) attend_sequence(args, sequences, b, kind == LayerKind::encoder);
  for (int64_t row = sequences.cu_q[sequences.live]; row < args.q.rows; ++row)
    for (int32_t head = 0; head < args.q.heads; ++head) store_row_ref(args, row, head, nullptr);
}

}  // namespace quire::attn::testing
