// What lies between the passes of a head on a GPU (draft_forward.h): small kernels over rows, recorded into its graphs,
// so that a pass finds its inputs where the one before has left them and the host is not asked.
//
//   fetch_rows     what the host says of a step's rows
//   enter_states   whose states enter beside a step's tokens
//   keep_features  what later steps will ask for: features of a page's last token, and of a request's
//   take_rows      the rows of a step that go on to attention and to the end of the layer
//   lay_out        positions and slots of all passes of a round
//   pick           the likeliest token of each row, with its chance: for the host, and as the next pass's input
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

// Arrays of numbers side by side, from pinned memory to the device's: by one kernel, many numbers at a time, since each
// reading crosses the bus.
struct FetchRowsArgs {
  static constexpr int32_t kMostArrays = 8;
  const int32_t* from;  // [arrays, stride] pinned
  int32_t* to;          // the same
  int64_t stride;       // a multiple of 4
  int32_t arrays;
  int32_t count[kMostArrays];  // of each array; up to three more are copied
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

struct LayOutArgs {
  const int32_t* live;
  const RequestRow* rows;     // [live]
  const TokenCount* lengths;  // [live] tokens before the first pass's
  kv::TableView table;
  int32_t passes, captured;
  int32_t* positions;  // [passes, captured]; padding is at 0
  TokenSlot* slots;    // [passes, captured]
  int32_t* all_rows;   // [1] passes * captured
};

struct PickArgs {
  Rows<const float> logits;    // [rows, draft vocabulary]
  const int32_t* token_ids;    // [draft vocabulary]
  Rows<const float> states;    // [rows, width] that go on with the tokens
  Rows<float> states_out;      // a row for each,
  const RequestRow* rows_out;  // [rows] this one; null: in order
  int32_t* tokens;             // [rows] the next pass's ids; null: nobody's
  const uint32_t* number;      // of the step
  PickedDraft* picked;         // [rows] pinned
  const int32_t* live;
};

namespace cuda {
void fetch_rows(const FetchRowsArgs& args, Exec& exec);
void enter_states(const EnterStatesArgs& args, Exec& exec);
void keep_features(const KeepFeaturesArgs& args, Exec& exec);
void take_rows(const TakeRowsArgs& args, Exec& exec);
void lay_out(const LayOutArgs& args, Exec& exec);
// A row with NaN or infinity, or nothing above -infinity, has the first token, with chance 0.
void pick(const PickArgs& args, Exec& exec);
}  // namespace cuda

}  // namespace quire::model
