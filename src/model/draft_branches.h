// Trees of drafts on a GPU (engine/draft_tree.h), beside what chains need (draft_rows.h): small kernels, recorded into
// the head's graphs.
//
//   keep_path  after the walk: keys, values and features of the drafts that came, to where the text has them
//   grow       after a pass over the branches that are followed: those of the next one, as EAGLE-2 chooses them
//
//   text   | row 0 | 1 | 2 | 3 | 4 | 5      rows of a share, in the slots behind its text
//   path     0           2       4          that the walk took
//   after    0       2   4                  in slots 0, 1, 2; the rest means nothing
#pragma once
#include <cstdint>

#include "base/exec.h"
#include "base/tensor.h"
#include "base/types.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "model/draft_rows.h"

namespace quire::model {

inline constexpr int32_t kMostGpuTopk = 16;

struct KeepPathArgs {
  const int32_t* live;
  int32_t captured;
  const RequestRow* rows;    // [live]
  const WalkedPath* paths;   // [live]
  const int32_t* path_rows;  // [live, 1 + kMostTreeDrafts]
  kv::TableView table;
  kv::LayerKv first_layer;  // of the target, and
  int64_t layer_bytes;      // how far the next one lies behind it
  int32_t layers;
  Rows<const float> features;  // of the target's step
  int64_t first_page;          // kept rows before those of pages
  Rows<float> kept;            // features of the last token of each page
};

// A branch continues one of the pass before. Of all tokens that are said behind the branches that were followed, topk
// of each, the topk whose paths are likeliest are followed next, the first of equals first.
struct GrowArgs {
  const int32_t* live;
  int32_t captured, topk;    // up to kMostGpuTopk
  const int32_t* said;       // [live, topk, topk] tokens behind each branch, and
  const float* hits;         // [live, topk, topk] their chances: what pick() has left
  float* paths;              // [live, topk] chances of the branches, with all before: changed
  Rows<const float> states;  // [live, topk] that go on
  Rows<float> states_out;    // [live, topk] the next pass's; may be `states`
  int32_t* tokens;           // [live, topk] and its ids
  int32_t* parents;          // [live, topk] the branch that each continues
  const uint32_t* number;    // of the step
  PickedDraft* followed;     // [live, topk] pinned: which of the topk * topk, as a token; and its path
};

namespace cuda {
void keep_path(const KeepPathArgs& args, Exec& exec);
void grow(const GrowArgs& args, Exec& exec);
}  // namespace cuda

}  // namespace quire::model
