// One forward step, described: what is fixed when a graph is captured (StepShape) and what changes from step to
// step and therefore lies at fixed addresses (StepInputs).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "attn/metadata.h"
#include "base/buffer.h"
#include "base/types.h"
#include "kv/request_table.h"

namespace quire::attn {

// s = StepInputs::lengths[b] in each mode:
enum class Mode : uint8_t {
  decode,        // s keys, the new token's included; one query
  extend,        // s keys, the last extend_lengths[b] of them are this step's queries (prefill, chunked or mixed)
  draft,         // s committed keys; draft step i adds i + 1 in the request's own row; one query
  draft_tree,    // s committed keys; k queries, each with i + 1 draft slots of its own
  verify,        // s committed keys, then nd drafts in a chain in the request's own row; nd queries
  verify_tree,   // s committed keys, then nd nodes in the row; a node sees the nodes its mask names; nd queries
  draft_extend,  // as extend, for the draft model
};
const char* to_string(Mode mode);

// What a layer attends to. A model may have layers of several kinds; one writer call serves them all.
enum class LayerKind : uint8_t { full, local, window, encoder };
const char* to_string(LayerKind kind);

struct StepShape {
  Mode mode;
  Form form = Form::in_place;
  int32_t captured;        // sequences the step is padded to; live <= captured <= limits.batch
  int32_t query_rows;      // most query rows of all sequences together: q and out of its attention have so many
  int32_t draft_step = 0;  // draft, draft_tree: which plane attention reads; the writer writes all of them
  bool local = false;      // decode, extend: also write the local set; not with encoder, whose pages shift the text
  bool encoder = false;    // decode, extend: also write the encoder set; text starts on the page after the encoder's
  kv::TableView table;     // the request table
  std::optional<kv::TableView> window_table = {};  // with layers of a window pool: its table; not with draft_tree
};

struct StepInputs {
  const int32_t* live;                // [1] live sequences
  const RequestRow* rows;             // [live] their rows in the request table (and in the window's)
  const TokenCount* lengths;          // [live] s
  const TokenCount* extend_lengths;   // [live] extend, draft_extend
  const TokenSlot* draft_slots;       // [live, topk, draft_steps] draft_tree
  const uint8_t* tree_mask;           // [live * nd, nd] verify_tree: node q sees node j (0 or 1), and itself
  const TokenCount* encoder_lengths;  // [live] with encoder
  // For whoever sends inputs to a GPU and waits for room to send more: its writer puts *number at *arrived. Null:
  // nobody.
  const uint32_t* number = nullptr;  // [1] of the step
  uint32_t* arrived = nullptr;       // [1] in pinned memory
};

// The owner of one step's inputs: arrays of the arena's limits at fixed addresses, never filled.
class StepInputBuffers {
 public:
  explicit StepInputBuffers(const Limits& limits, Place place = Place::host);
  StepInputs inputs() const;
  const Buffer& memory() const { return memory_; }  // all of them, to be copied whole

  int32_t& live() const;
  RequestRow* rows() const;
  TokenCount* lengths() const;
  TokenCount* extend_lengths() const;
  TokenSlot* draft_slots() const;
  uint8_t* tree_mask() const;
  TokenCount* encoder_lengths() const;
  uint32_t& number() const;

 private:
  Buffer memory_;
  StepInputs inputs_;
};

// Throws CheckError that names the request and prints the offending values unless the step fits the limits and the
// tables: counts, lengths, rows, slots; and its query rows the shape. O(batch x its small inputs); changes nothing.
// Call it on the host before a step is written or replayed, with the shape that was recorded.
void check_step(const StepShape& shape, const StepInputs& inputs, const Limits& limits);

// The check for tables that a RequestTable does not vouch for: every page id that the step may read lies in the
// pool and is not the reserved one. O(pages).
void check_pages(const StepShape& shape, const StepInputs& inputs, const Limits& limits);

// How many leading elements of row `row` of a buffer a reader of this step may read; 0 for buffers and rows that the
// step does not use. `plane` -1: of any draft step, else of that one only.
int64_t readable(const BufferSpec& buffer, const StepShape& shape, const StepInputs& inputs, const Limits& limits,
                 int64_t row, int32_t plane = -1);

}  // namespace quire::attn
