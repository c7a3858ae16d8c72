// Paged attention for one layer of one step, every mode and variant.
//
//   x[i][j] = scale * q[i] . K[j]                   softcap c > 0: x = c * tanh(x / c)
//   out[i]  = sum_j softmax(x[i])[j] V[j]           over the keys j that row i may see
//   lse[i]  = ln sum_j exp(x[i][j])                 of the keys alone, a sink not counted
//
// Keys of row i, in logical order: the sequence's keys up to its own position (causal) or all of them, then the row's
// own branch. With a window w only the last w + 1 positions. A sink adds exp(sink[h]) to the denominator.
//
// Before   this step's K and V are stored; the metadata was written.
// After    rows of live sequences hold the result; all other rows of out hold zeros and of lse -inf, without a read
//          of any K or V. A row that sees no key gets the same.
// Memory   allocates nothing; everything that may change is read when the operation runs, so it can be recorded.
// Errors   an unsupported problem or a mismatch of shapes throws CheckError that prints it, before any work.
//
// One reduction: on one kind of CPU, and on a GPU if `deterministic` is set, a row's bits depend on its query, its keys
// and nothing else; not on the mode, the batch, the chunking, the page size or the number of threads. (Stored keys and
// values are numbers: an infinite or NaN value of a key that only a neighbouring row sees may show, as 0 times it.)
#pragma once
#include <cstdint>

#include "attn/metadata.h"
#include "attn/step.h"
#include "base/exec.h"
#include "base/tensor.h"
#include "kv/store.h"

namespace quire::attn {

// A step's metadata as one kernel reads it: pointers into the arena and the request table.
struct KeyView {
  Set set;                        // the set it was made from
  const int32_t* live;            // [1] live sequences
  const int32_t* cu_q;            // [sequences + 1] query rows of sequence b: cu_q[b] .. cu_q[b + 1] - 1
  const int32_t* lengths;         // [sequences] keys in pages
  const int32_t* cu_items;        // [sequences + 1] work items before sequence b: tiles, or tiles x ranges if split
  const int32_t* cu_splits;       // [sequences + 1] items of split sequences before b; each leaves a partial result
                                  // Both null on a GPU.
  const PageId* pages;            // page tables
  int64_t stride;                 // entries from one table row to the next
  const RequestRow* rows;         // [sequences] table row of sequence b; null: row b itself
  const int32_t* first_page;      // [sequences] first entry of sequence b in its row; null: 0
  bool starts_at_first_page;      // the first key's position is first_page * page size (local chunks in place), not 0
  bool causal;                    // row i of sq sees the keys up to i + length - sq; else all of them
  const int32_t* branch_lengths;  // [query rows] tokens of the row's own branch; null: no branches
  const TokenSlot* branch_slots;  // [query rows, branch_stride]
  int64_t branch_stride;
  int32_t most_branch_tokens;  // bound of branch_lengths
  int32_t most_queries;        // bound of a sequence's query rows; 0: only the step knows
  int32_t query_rows;          // bound of all sequences' query rows
  int32_t most_sequences;      // bound of the step's sequences
  PageSize page_size;
  int32_t most_keys;  // bound of lengths: check_step() holds every replay to it
};

// The view of the given kind of layer on the step that was written to the arena.
KeyView key_view(const MetadataArena& arena, const StepShape& shape, LayerKind kind);

struct AttendArgs {
  KeyView keys;
  const MetadataArena* arena;  // owner of the metadata and of the workspace of split sequences
  kv::LayerKv kv;
  ConstHeadRows q;       // [rows, heads, key dim]
  HeadRows out;          // [rows, heads, value dim]
  float* lse = nullptr;  // [heads, rows], natural logarithm; null: not wanted
  float scale;
  float softcap = 0;             // 0: none
  int32_t window = -1;           // tokens before its own that a row sees; -1: all
  const float* sinks = nullptr;  // [heads]; null: none
  // On a GPU, where it costs time: the one reduction, as below. A CPU has no other.
  bool deterministic = false;
  // On a GPU: the kernel right before this one in its stream wrote nothing of what `keys` says, and of K and V nothing
  // but this step's: a sequence's last keys in pages, as many as it has queries, and its branches. So the rest may be
  // read while that kernel ends. In a model it is one that makes queries, keys and values. (Keys of an encoder are
  // waited for in any case.)
  bool keys_are_settled = false;
};

using AttendFn = void(const AttendArgs&, Exec&);
namespace ref {
AttendFn attend;
}  // namespace ref
namespace cpu {
AttendFn attend;
}  // namespace cpu
namespace cuda {
AttendFn attend;  // all addresses are the device's, or pinned
}  // namespace cuda
AttendFn attend;  // for callers: on the GPU when exec has a stream

// The checks of the door, shared by all implementations. One is that q and out have a row for each that a step of this
// shape may have: check_step() holds every replay to the shape, so no kernel writes past their end.
void check_args(const AttendArgs& args);

// That q and out have room for the query rows of the step that was written, for calls on the host that run at once.
void check_rows(const AttendArgs& args);

}  // namespace quire::attn
