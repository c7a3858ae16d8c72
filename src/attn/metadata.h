// The step metadata: which small tables exist, how large they are, who writes them and which of their elements a
// reader may read. Everything else that must know a buffer (the arena, the poisoning, the shadow checker, the
// mutation tests, `quire inspect`) is made from the one table below.
//
// All buffers that a device's kernels read live in one arena, allocated once, never filled, at fixed addresses.
// Captured batch sizes share them. There are no write-once buffers: every step's writer writes all that the step's
// readers read.
//
// Two forms of a step:
//   in place      kernels read a request's own row of the request table through (request_row, first_page): the
//                 writer writes O(batch) integers, and rows past the live count are neither written nor read.
//   materialised  also the page tables themselves, prefix sums of key lengths, and padded rows (length 1 on the
//                 reserved page 0), for kernels outside quire and for `quire inspect step`.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/buffer.h"
#include "base/types.h"

namespace quire::attn {

// Most branches, draft steps and verified nodes of a request: writers keep one such row on the stack.
inline constexpr int32_t kMostDrafts = 1024;

enum class Form : uint8_t { in_place, materialised };
const char* to_string(Form form);

// What the arena and the step's inputs are sized for. Fixed for their life.
struct Limits {
  int32_t batch;    // B: most requests in a step
  int32_t context;  // C: most committed tokens of a request
  PageSize page_size;
  int32_t topk = 1;             // k: branches of a draft tree
  int32_t draft_steps = 0;      // S: draft tokens on a branch; S - 1 of them need a forward pass
  int32_t draft_tokens = 0;     // nd: nodes verified for a request, the root included
  int32_t chunk = 0;            // tokens in a chunk of local layers, a multiple of the page size; 0: no such layers
  int32_t encoder_context = 0;  // most encoder keys of a request; 0: no cross attention
  int32_t heads = 1;            // of the attention calls: work is cut and split results are kept for this shape
  int32_t kv_heads = 1;
  int32_t key_dim = 128;
  int32_t value_dim = 128;
  int32_t threads = 1;          // of the team that attends
  int32_t query_rows = 0;       // most rows of a step that a model computes; 0: no inputs of a model
  int32_t wanted_rows = 0;      // those of them whose results it may give
  int32_t journal_pages = 0;    // most page ids that a step brings for a page table's mirror; 0: no mirror
  Device device = Device::cpu;  // the arena has what its kernels read
  Form form = Form::in_place;   // materialised: the arena also has the tables, and serves steps of both forms

  int32_t planes() const { return draft_steps > 2 ? draft_steps - 1 : 1; }  // draft steps written at once
  int32_t text_tokens() const;  // most keys of a request's text, drafts included
  int32_t text_pages() const { return page_size.pages_for(text_tokens()); }
  int32_t encoder_pages() const { return page_size.pages_for(encoder_context); }
  int32_t virtual_batches() const { return chunk ? batch * ((text_tokens() + chunk - 1) / chunk) : 0; }
  void check() const;  // throws CheckError printing the limits when they make no sense
};
std::string to_string(const Limits& limits);

enum class Set : uint8_t {
  decode,
  local,
  draft_prefix,
  draft_branch,
  verify,
  verify_tree_prefix,
  verify_tree_branch,
  encoder,
  extend,
  draft_extend,
  window,
  work,   // of a CPU: what the items of split sequences leave behind
  split,  // of a GPU: what its blocks leave for each other
};
const char* to_string(Set set);  // "decode", "draft.prefix", ...

enum class Element : uint8_t { count, page, slot, row, f32 };
const char* to_string(Element element);

// Who writes a buffer and for whom: `step` buffers are written by the metadata writer in both forms, `table`
// buffers by it in the materialised form only, `kernel` buffers by the attention kernel itself.
enum class Role : uint8_t { step, table, kernel };
const char* to_string(Role role);

// On which devices a buffer is read. On others nobody writes it, and arenas do not have it.
enum class On : uint8_t { any, cpu, cuda };
const char* to_string(On on);

// QUIRE_METADATA(X) lists every buffer: X(set, name, element, role, on, rows, columns), shape as a function of `l`.
// A one-dimensional buffer has one row; a buffer with one row for each draft step has l.planes() of them.
#define QUIRE_SEQUENCE_SET(X, set, PLANES)                     \
  X(set, live_count, count, step, any, 1, 1)                   \
  X(set, cache_seqlens, count, step, any, PLANES, l.batch)     \
  X(set, cu_seqlens_q, count, step, any, 1, l.batch + 1)       \
  X(set, cu_seqlens_k, count, table, any, PLANES, l.batch + 1) \
  X(set, request_row, row, step, any, 1, l.batch)              \
  X(set, first_page, count, step, any, 1, l.batch)             \
  X(set, cu_items, count, step, cpu, PLANES, l.batch + 1)      \
  X(set, cu_splits, count, step, cpu, PLANES, l.batch + 1)     \
  X(set, page_table, page, table, any, l.batch, l.text_pages())

#define QUIRE_METADATA(X)                                                                            \
  QUIRE_SEQUENCE_SET(X, decode, l.planes())                                                          \
  X(decode, page_table_draft_decode, page, table, any, l.batch, l.text_pages())                      \
  X(local, live_count, count, step, any, 1, 1)                                                       \
  X(local, local_query_start_loc, count, step, any, 1, l.virtual_batches() + 1)                      \
  X(local, local_seqused_k, count, step, any, 1, l.virtual_batches())                                \
  X(local, request_row, row, step, any, 1, l.virtual_batches())                                      \
  X(local, first_page, count, step, any, 1, l.virtual_batches())                                     \
  X(local, cu_items, count, step, cpu, 1, l.virtual_batches() + 1)                                   \
  X(local, cu_splits, count, step, cpu, 1, l.virtual_batches() + 1)                                  \
  X(local, local_block_table, page, table, any, l.virtual_batches(), l.page_size.pages_for(l.chunk)) \
  QUIRE_SEQUENCE_SET(X, draft_prefix, 1)                                                             \
  X(draft_branch, cache_seqlens, count, step, any, l.planes(), l.batch* l.topk)                      \
  X(draft_branch, cu_seqlens_q, count, table, any, 1, l.batch* l.topk + 1)                           \
  X(draft_branch, cu_seqlens_k, count, table, any, l.planes(), l.batch* l.topk + 1)                  \
  X(draft_branch, page_table, slot, step, any, l.batch* l.topk, l.draft_steps)                       \
  QUIRE_SEQUENCE_SET(X, verify, 1)                                                                   \
  QUIRE_SEQUENCE_SET(X, verify_tree_prefix, 1)                                                       \
  X(verify_tree_branch, cache_seqlens, count, step, any, 1, l.batch* l.draft_tokens)                 \
  X(verify_tree_branch, cu_seqlens_q, count, table, any, 1, l.batch* l.draft_tokens + 1)             \
  X(verify_tree_branch, cu_seqlens_k, count, table, any, 1, l.batch* l.draft_tokens + 1)             \
  X(verify_tree_branch, page_table, slot, step, any, l.batch* l.draft_tokens, l.draft_tokens)        \
  X(encoder, encoder_lens_int32, count, step, any, 1, l.batch)                                       \
  X(encoder, encoder_cu_seqlens_k, count, table, any, 1, l.batch + 1)                                \
  X(encoder, cu_items, count, step, cpu, 1, l.batch + 1)                                             \
  X(encoder, cu_splits, count, step, cpu, 1, l.batch + 1)                                            \
  X(encoder, encoder_page_table, page, table, any, l.batch, l.encoder_pages())                       \
  QUIRE_SEQUENCE_SET(X, extend, 1)                                                                   \
  QUIRE_SEQUENCE_SET(X, draft_extend, 1)                                                             \
  QUIRE_SEQUENCE_SET(X, window, l.planes())                                                          \
  X(window, branch_page_table, slot, step, any, l.batch* l.draft_tokens, l.draft_tokens)             \
  X(work, partial_out, f32, kernel, cpu, partial_rows(l), l.value_dim)                               \
  X(work, partial_max, f32, kernel, cpu, 1, partial_rows(l))                                         \
  X(work, partial_sum, f32, kernel, cpu, 1, partial_rows(l))                                         \
  X(split, partial_out, f32, kernel, cuda, kSplitRows, l.value_dim)                                  \
  X(split, partial_max, f32, kernel, cuda, 1, kSplitRows)                                            \
  X(split, partial_sum, f32, kernel, cuda, 1, kSplitRows)                                            \
  X(split, arrivals, count, step, cuda, 1, kMostSplitBlocks)                                         \
  X(split, next_tile, count, step, cuda, 1, 1)

// A GPU splits the keys of (query row, head) pairs of a sequence and kv head, so many at most at a time, over so many
// blocks; each of these leaves two unfinished tiles behind at most, in so many rows of partial results of them all.
inline constexpr int32_t kMostSplitBlocks = 256, kMostSplitRows = 64;
inline constexpr int64_t kSplitRows = int64_t{2} * kMostSplitBlocks * kMostSplitRows;

enum class Buf : uint8_t {
#define X(set, name, element, role, on, rows, columns) set##_##name,
  QUIRE_METADATA(X)
#undef X
      count_
};
inline constexpr int kBufferCount = static_cast<int>(Buf::count_);

struct Shape {
  int64_t rows;
  int64_t columns;
};

struct BufferSpec {
  Buf id;
  Set set;
  const char* name;
  Element element;
  Role role;
  On on;
  Shape (*shape)(const Limits&);
};
extern const std::array<BufferSpec, kBufferCount> kBuffers;
inline const BufferSpec& spec(Buf id) { return kBuffers[static_cast<size_t>(id)]; }
std::string to_string(Buf id);  // "draft.branch.page_table"

// Whether kernels of the device read the buffer at all; whether an arena of these limits has it.
bool is_read_on(const BufferSpec& buffer, Device device);
bool is_held(const BufferSpec& buffer, const Limits& limits);

// The most (query row, head) results that split sequences can leave behind in one call; see cpu_choice.h.
int64_t partial_rows(const Limits& limits);

class MetadataArena {
 public:
  explicit MetadataArena(const Limits& limits, Place place = Place::host);
  MetadataArena(const Limits& limits, MemoryPool& pool);
  static size_t bytes_for(const Limits& limits);

  const Limits& limits() const { return limits_; }
  Shape shape(Buf id) const { return spec(id).shape(limits_); }
  size_t bytes() const { return memory_.size(); }
  bool has(Buf id) const { return find(id) != nullptr; }

  // Where a buffer lies: find() gives null, the others throw CheckError, for one that the arena does not have.
  std::byte* find(Buf id) const { return address_[static_cast<size_t>(id)]; }
  std::byte* at(Buf id) const {
    std::byte* const found = find(id);
    if (!found) [[unlikely]]
      refuse(id);
    return found;
  }
  int32_t* counts(Buf id) const { return reinterpret_cast<int32_t*>(at(id)); }
  PageId* pages(Buf id) const { return reinterpret_cast<PageId*>(at(id)); }
  TokenSlot* slots(Buf id) const { return reinterpret_cast<TokenSlot*>(at(id)); }
  RequestRow* rows(Buf id) const { return reinterpret_cast<RequestRow*>(at(id)); }
  float* floats(Buf id) const { return reinterpret_cast<float*>(at(id)); }
  std::span<int32_t> words(Buf id) const;  // the whole buffer as 32-bit words: every element type is one

 private:
  using Offsets = std::array<size_t, kBufferCount + 1>;  // the end too
  static Offsets layout(const Limits& limits);
  void place_buffers(const Offsets& offsets);
  [[noreturn]] void refuse(Buf id) const;

  Limits limits_;
  Buffer memory_;
  std::array<std::byte*, kBufferCount> address_;  // null: the arena does not have it
};

}  // namespace quire::attn
