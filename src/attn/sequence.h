// What each mode makes of a request: its keys, its queries, the pages of its row that are read. One request at a time
// and in plain arithmetic: readable(), the checks, the views and the reference writer are made from it. The fast writer
// has its own arithmetic, and the tests hold it against this one.
//
// A request index b at or past the live count is padding: length 1 on the reserved page, row 0.
#pragma once
#include <cstdint>

#include "attn/metadata.h"
#include "attn/step.h"

namespace quire::attn {

// The buffers that every set of whole sequences has.
struct SequenceSet {
  Buf live_count, cache_seqlens, cu_seqlens_q, cu_seqlens_k, request_row, first_page, cu_items, cu_splits, page_table;
};
SequenceSet sequence_set(Set set);  // throws CheckError for the other sets

// The same, with their addresses, for writers. Null: the arena does not have it.
struct SequenceTarget {
  int32_t* live_count;
  int32_t* lengths;  // [planes, batch]
  int32_t* cu_q;
  int32_t* cu_k;  // [planes, batch + 1]
  RequestRow* rows;
  int32_t* first_page;
  int32_t* items;  // [planes, batch + 1]
  int32_t* splits;
  PageId* table;
  int64_t table_stride;
};
SequenceTarget sequence_target(const MetadataArena& arena, const SequenceSet& set, Buf page_table);

Set main_set(Mode mode);                                               // the set that layers of kind full read
Buf main_page_table(Mode mode);                                        // its materialised table
bool is_tree(Mode mode);                                               // rows have branches of their own
bool is_draft(Mode mode);                                              // one plane for each draft step
bool has_extend_lengths(Mode mode);                                    // each request has its own number of queries
bool has_extend_lengths(const StepShape& shape);                       // likewise, ragged trees included
int32_t queries_of_all(const StepShape& shape, const Limits& limits);  // of every request alike; 0: each has its own
int32_t added_keys(Mode mode, const Limits& limits);                   // to the given length, at the first draft step
int32_t planes_of(Mode mode, const Limits& limits);                    // draft steps that the mode writes at once
int32_t sequence_planes(Mode mode, const Limits& limits);              // rows of cache_seqlens in its main set
// Most tokens of a row's own branch, a constant so that the division of work does not depend on the draft step.
int32_t most_branch_tokens(Mode mode, const Limits& limits);
// Query rows with a branch of their own, for each request; 0 without branches. Ragged trees have as many as they have
// queries.
int32_t branch_rows(Mode mode, const Limits& limits);
// Whether any element of the buffer is written for such a step on the device, and read.
bool is_used(const BufferSpec& buffer, const StepShape& shape, Device device);

struct StepView {
  const StepShape& shape;
  const StepInputs& inputs;
  const Limits& limits;

  int32_t live() const { return *inputs.live; }
  int32_t sequences() const { return shape.form == Form::materialised ? shape.captured : live(); }
};

int32_t keys_in_pages(const StepView& step, int32_t b, int32_t plane);  // L
int32_t queries(const StepView& step, int32_t b);
int32_t encoder_keys(const StepView& step, int32_t b);
int32_t first_text_page(const StepView& step, int32_t b);  // entry of the row where its text begins
// Entries of the row that the step reads in all its draft steps, encoder pages and the slots of tree nodes included.
int32_t row_pages(const StepView& step, int32_t b);
int32_t branch_tokens(const StepView& step, int32_t branch_row, int32_t plane);
int32_t all_branch_rows(const StepView& step);  // of all requests, padding included where the form has it

// A local layer sees a request as virtual sequences, one for each chunk of positions that holds queries.
struct Chunk {
  int32_t start;    // position of its first key, a multiple of the chunk
  int32_t keys;     // from there to the last query, or to the chunk's end
  int32_t queries;  // the last of those keys
};
int32_t chunk_count(const StepView& step, int32_t b);
Chunk chunk_of(const StepView& step, int32_t b, int32_t index);
int32_t live_chunks(const StepView& step);      // of all live requests
int32_t readable_chunks(const StepView& step);  // padding included where the form has it

}  // namespace quire::attn
