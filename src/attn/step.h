// One forward step, described: what is fixed when a graph is captured (StepShape) and what changes from step to
// step and therefore lies at fixed addresses (StepInputs).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "attn/metadata.h"
#include "base/buffer.h"
#include "base/drawn_tokens.h"
#include "base/types.h"
#include "kv/page_table_journal.h"
#include "kv/request_table.h"

namespace quire::attn {

// s = StepInputs::lengths[b] in each mode:
enum class Mode : uint8_t {
  decode,       // s keys, the new token's included; one query
  extend,       // s keys, the last extend_lengths[b] of them are this step's queries (prefill, chunked or mixed)
  draft,        // s committed keys; draft step i adds i + 1 in the request's own row; one query
  draft_tree,   // s committed keys; k queries, each with i + 1 draft slots of its own
  verify,       // s committed keys, then nd drafts in a chain in the request's own row; nd queries
  verify_tree,  // s committed keys, then nd nodes in the row; a node sees the nodes its mask names; nd queries; ragged:
                // extend_lengths[b] nodes and queries
  draft_extend,  // as extend, for the draft model
};
const char* to_string(Mode mode);

// What a layer attends to. A model may have layers of several kinds; one writer call serves them all.
enum class LayerKind : uint8_t { full, local, window, encoder };
const char* to_string(LayerKind kind);

struct StepShape {
  Mode mode;
  Form form = Form::in_place;
  int32_t captured;           // sequences the step is padded to; live <= captured <= limits.batch
  int32_t query_rows;         // most query rows of all sequences together: q and out of its attention have so many
  int32_t sequence_rows = 0;  // extend, draft_extend, ragged: most query rows of a sequence, which a recorded step may
                              // count on; 0: there may be as many as in all
  int32_t draft_step = 0;     // draft, draft_tree: which plane attention reads; the writer writes all of them
  bool ragged = false;        // verify_tree: trees of several sizes, without padding; in place
  bool local = false;         // decode, extend: also write the local set; not with encoder, whose pages shift the text
  bool encoder = false;       // decode, extend: also write the encoder set; text starts on the page after the encoder's
  kv::TableView table;        // the request table
  std::optional<kv::TableView> window_table = {};  // with layers of a window pool: its table; not with draft_tree
  int32_t context = 0;  // most that a sequence's length may be, which a recorded step may count on; 0: the limits'
};

// QUIRE_STEP_INPUTS(ONE, MANY) lists all that changes from step to step: ONE(type, name) is a number, MANY(type, name,
// elements) an array, with room as a function of the limits `l`. The structs, their memory, the pinned ring and the
// upload are made from it.
//
//   attention            live             sequences
//                        rows             [live] in the request table (and in the window's)
//                        lengths          [live] s
//                        extend_lengths   [live] extend, draft_extend, ragged trees
//                        draft_slots      [live, topk, draft_steps] draft_tree
//                        tree_mask        [live * nd, nd] verify_tree: node q sees node j (0 or 1), and itself; ragged:
//                                         [query rows, nd], of which a request's own nodes are read
//                        encoder_lengths  [live] with encoder
//   a model              query_rows       of all sequences together, one after the other
//   (Limits::query_rows) input_ids        [query_rows] tokens; in a source also future_token()
//                        positions        [query_rows]
//                        slot_mapping     [query_rows] where their keys and values go
//                        wanted_rows      [wanted_count] rows whose last hidden state is wanted; of others only K and V
//                        logits_count     the first of the wanted rows, whose logits are wanted too
//   a page table's       journal_runs     [journal_count] what changed in the table since the step before:
//   mirror (Limits::     journal_pages    of all runs, one after the other; see kv/page_table_journal.h
//   journal_pages)
//   StepUpload           number           of the step
#define QUIRE_STEP_INPUTS(ONE, MANY)                                           \
  ONE(int32_t, live)                                                           \
  MANY(RequestRow, rows, l.batch)                                              \
  MANY(TokenCount, lengths, l.batch)                                           \
  MANY(TokenCount, extend_lengths, l.batch)                                    \
  MANY(TokenSlot, draft_slots, int64_t{l.batch} * l.topk * l.draft_steps)      \
  MANY(uint8_t, tree_mask, int64_t{l.batch} * l.draft_tokens * l.draft_tokens) \
  MANY(TokenCount, encoder_lengths, l.batch)                                   \
  ONE(int32_t, query_rows)                                                     \
  MANY(int32_t, input_ids, l.query_rows)                                       \
  MANY(int32_t, positions, l.query_rows)                                       \
  MANY(TokenSlot, slot_mapping, l.query_rows)                                  \
  ONE(int32_t, wanted_count)                                                   \
  MANY(int32_t, wanted_rows, l.wanted_rows)                                    \
  ONE(int32_t, logits_count)                                                   \
  ONE(int32_t, journal_count)                                                  \
  MANY(kv::PageRun, journal_runs, l.journal_pages ? l.batch : 0)               \
  MANY(PageId, journal_pages, l.journal_pages)                                 \
  ONE(uint32_t, number)

// Which of the copies a GPU reads next, and how many it has read.
struct alignas(8) StepTurn {
  uint32_t copy, fetched;
};

// Where a GPU's writer takes the inputs from (step_upload.h): copies in pinned memory that the host fills in turn.
struct StepSource {
  static constexpr int32_t kMostCopies = 4;
  std::array<const std::byte*, kMostCopies> copies = {};
  uint32_t count = 0;           // of them; 0: the inputs are where they are read
  std::byte* device = nullptr;  // where they come to lie, as in a copy
  StepTurn* turn = nullptr;     // the device's
  uint32_t* fetched = nullptr;  // pinned: steps whose inputs have been read, as the last step found it
  DrawnTokens drawn = {};       // of input_ids that are future_token()
};

// One step's inputs, as its readers see them.
struct StepInputs {
#define X(type, name, ...) const type* name;
  QUIRE_STEP_INPUTS(X, X)
#undef X
  StepSource source = {};
};

// The owner of one step's inputs: arrays of the limits at fixed addresses, never filled. Its members of the inputs'
// names give a number to be set, an array to be written.
class StepInputBuffers {
 public:
  explicit StepInputBuffers(const Limits& limits, Place place = Place::host);
  const StepInputs& inputs() const { return inputs_; }
  const Buffer& memory() const { return memory_; }  // all of them, to be copied whole

#define ONE(type, name) \
  type& name() const { return const_cast<type&>(*inputs_.name); }
#define MANY(type, name, elements) \
  type* name() const { return const_cast<type*>(inputs_.name); }
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY

 private:
  Buffer memory_;
  StepInputs inputs_;
};

// Throws CheckError that names the request and prints the offending values unless the step fits the limits and the
// tables: counts, lengths, rows, slots, the journal's runs; and its query rows the shape, and what a model is given of
// them. O(batch x its small inputs); changes nothing. Call it on the host before a step is sent, written or replayed,
// with the shape that was recorded: what may lie on a device by then, nobody looks at again.
void check_step(const StepShape& shape, const StepInputs& inputs, const Limits& limits);

// The check for tables that a RequestTable does not vouch for: every page id that the step may read lies in the
// pool and is not the reserved one. O(pages).
void check_pages(const StepShape& shape, const StepInputs& inputs, const Limits& limits);

// How many leading elements of row `row` of a buffer a reader of this step may read; 0 for buffers and rows that the
// step does not use. `plane` -1: of any draft step, else of that one only.
int64_t readable(const BufferSpec& buffer, const StepShape& shape, const StepInputs& inputs, const Limits& limits,
                 int64_t row, int32_t plane = -1);

}  // namespace quire::attn
