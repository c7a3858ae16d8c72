// What lies between the passes of a head on a GPU (draft_forward.h): small kernels over rows, recorded into its graphs,
// so that a pass finds its inputs where the one before has left them and the host is not asked.
//
//   walk           which drafts of the target's step came, and so which slots it gives: inputs of what follows
//   enter_states   whose states enter beside a step's tokens
//   keep_features  what later steps will ask for: features of a page's last token, and of a request's
//   take_rows      the rows of a step that go on to attention and to the end of the layer
//   lay_out        positions and slots of all passes of a round
//   pick           the likeliest tokens of each row, with their chances: for the host, and as the next pass's input
//
// What trees of drafts need beside these is in draft_branches.h.
//
// Kept rows are one array: a row for each row of the request table, of which the first is nobody's and zeros, then one
// for each page.
#pragma once
#include <cstdint>

#include "base/exec.h"
#include "base/tensor.h"
#include "base/types.h"
#include "kv/request_table.h"

namespace quire::model {

// What pick() says, read by the host when the number beside it is that of the step.
struct alignas(16) PickedDraft {
  int32_t token;
  uint32_t token_number;
  float hit;
  uint32_t hit_number;
};

// What the host says of the target's step before it knows what was drawn, in pinned memory.
struct alignas(16) WalkedStep {
  int32_t live;     // shares that get slots
  int32_t passing;  // the first of them, for which passes follow
  int32_t rows;     // slots of all of them, if all drafts come
  uint32_t number;
};

// A share's rows in the target's step and its slots of the head's, as engine/draft_slots.h has them. Positions and
// slots are those of its text.
struct alignas(16) WalkedShare {
  RequestRow row;
  int32_t position;      // of its first row,
  int32_t first_row;     // which is this one of the step
  int32_t text_end;      // behind its text; drafts follow
  int32_t drafts;        // a chain, or else a tree: WalkArgs::follows says what each follows
  int32_t drawn;         // the first of its drawn tokens, of which there is one more than drafts; -1: it draws none
  int32_t begin;         // slots, if all drafts come, and
  int32_t most_end;      // one more than begin at least; all have pages
  int32_t first_slot;    // row of the head's step in which the slot `begin` is
  int32_t state_before;  // kept row, of the token before `position`
  int32_t branches;      // 1: a tree
  int32_t unused;        // pieces of 16 bytes cross the bus
};

// Drafts of a share that may branch.
inline constexpr int32_t kMostTreeDrafts = 64;

// Where the drafts that came lie in a tree.
struct alignas(16) WalkedPath {
  int32_t nodes;      // the text's last row and drafts that came; 1: none of a tree
  int32_t position;   // of the text's last row, and
  int32_t first_row;  // which row of the step it is
  int32_t unused;
};

// Before   the target's step, drafts and draws, is on the stream; the host has filled `step` and the shares that live.
// After    the head's inputs: of each share the length with its newest token, the row of that token, and which features
//          are kept; of all slots that it may have ids, positions, places and states. Those behind the newest token, of
//          drafts that did not come, lie in pages of the request where the next pass or step writes before anybody
//          reads. Of a tree the path that was walked, by which draft_branches.h moves what came to where the text has
//          it. A share whose token is missing (its row failed or was skipped) has the slots of its text, or else one
//          that means nothing and is written over, too.
struct WalkArgs {
  const WalkedStep* step;     // pinned
  const WalkedShare* shares;  // [captured] pinned
  int32_t captured;
  const int32_t* drawn;    // tokens that the target's step drew; -1: none
  const int32_t* follows;  // pinned, beside those of trees: the drawn row of the share that each follows; before it
  const int32_t* ids;      // [rows] of the target's step
  kv::TableView table;
  int32_t *live, *passing, *query_rows;  // [1] each, and
  uint32_t* number;                      // as WalkedStep has them
  RequestRow* rows;                      // [live]
  TokenCount* lengths;                   // [live]
  int32_t* wanted_rows;                  // [live]
  int32_t* kept_rows;                    // [live] of the features of the last token in pages; -1: none
  int32_t* input_ids;                    // [query_rows]
  int32_t* positions;                    // [query_rows]
  TokenSlot* slots;                      // [query_rows]
  int32_t* state_rows;                   // [query_rows]
  WalkedPath* paths;                     // [live]
  int32_t* path_rows;                    // [live, 1 + kMostTreeDrafts] nodes of each, counted from the text's last row
};

struct EnterStatesArgs {
  const int32_t* state_rows;   // [rows] a row of `features`, or -1 - a kept one
  Rows<const float> features;  // of the target's step
  Rows<const float> kept;
  Rows<float> out;
  const int32_t* live_rows;
};

struct KeepFeaturesArgs {
  Rows<const float> features;
  const TokenSlot* slots;     // [rows] of the target's step
  const int32_t* slot_count;  // its rows
  PageSize page_size;
  const int32_t* kept_rows;  // [live] of the features; -1: none
  const RequestRow* rows;    // [live]
  const int32_t* live;
  int64_t first_page;  // kept rows before those of pages
  Rows<float> kept;
};

struct TakeRowsArgs {
  const int32_t* wanted;  // [live]
  Rows<const float> x;
  Rows<float> x_out;
  const std::byte* q;  // [rows, q_bytes], a multiple of 16
  std::byte* q_out;
  int64_t q_bytes;
  const int32_t* live;
};

// Chains lie behind the text, in the request's pages; branches, where topk is above 1, in slots of their own, of which
// each request of the step has topk * steps.
struct LayOutArgs {
  const int32_t* live;
  const RequestRow* rows;     // [live]
  const TokenCount* lengths;  // [live] tokens before the first pass's
  kv::TableView table;
  int32_t passes, captured, topk, steps;
  TokenSlot first_branch_slot;
  int32_t* positions;      // [passes, captured, topk]; padding is at 0
  TokenSlot* slots;        // [passes, captured, topk]
  TokenSlot* draft_slots;  // [captured, topk, steps] of branches: those that passes fill
  int32_t* all_rows;       // [1] passes * captured * topk
  int32_t* pass_rows;      // [1] live * topk
};

struct PickArgs {
  Rows<const float> logits;  // [rows, draft vocabulary]
  const int32_t* token_ids;  // [draft vocabulary]
  int32_t topk;              // of each row, the likeliest first; up to the draft vocabulary
  Rows<const float> states;  // [rows, width] that go on with the tokens
  Rows<float> states_out;    // [rows, topk, width] the next pass's; null: somebody else's business
  int32_t* tokens;           // [rows, topk] and its ids
  float* hits;               // [rows, topk] their chances
  const uint32_t* number;    // of the step
  PickedDraft* picked;       // [rows, topk] pinned
  const int32_t* live;
};

namespace cuda {
void walk(const WalkArgs& args, Exec& exec);
void enter_states(const EnterStatesArgs& args, Exec& exec);
void keep_features(const KeepFeaturesArgs& args, Exec& exec);
void take_rows(const TakeRowsArgs& args, Exec& exec);
void lay_out(const LayOutArgs& args, Exec& exec);
// A row with NaN or infinity has the first token of all, with chance 0; so have those that are not above -infinity.
void pick(const PickArgs& args, Exec& exec);
}  // namespace cuda

}  // namespace quire::model
