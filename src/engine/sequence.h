// A request inside the engine: what was asked, its tokens so far, and how far their keys and values are computed.
//
//   tokens     [ prompt ............ | generated ..... ] [ pending ]    pending: being drawn by steps in flight
//   in pages   [ settled ................. ]                            by steps whose results were read
//              [ computed ..................... ]                       and by those in flight
//
// What lies past `computed` is still to be launched. A request that was retracted has computed == 0 and keeps its
// tokens: it comes back as if all of them were its prompt.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/types.h"
#include "engine/ahead_masks.h"
#include "engine/draft_reach.h"
#include "engine/draft_record.h"
#include "engine/drafter.h"
#include "engine/prompt_results.h"
#include "engine/request.h"

namespace quire::engine {

using Clock = std::chrono::steady_clock;

struct Sequence {
  RequestId id;                            // ascending in order of arrival
  std::shared_ptr<const Request> request;  // its prompt was moved to tokens
  Listener listener;
  std::vector<int32_t> tokens;
  int32_t prompt_tokens;
  int32_t most_tokens;  // of prompt and generated together: by max_new_tokens, the context and the pool
  PromptResults results = {};
  std::shared_ptr<AheadMask> mask = {};    // of the request's own; null: it has none
  std::unique_ptr<Drafter> drafter = {};   // of its own; null: it has none
  std::optional<DraftRecord> record = {};  // of a draft model's drafts; none: it drafts not for this one
  DraftReach reach{0};                     // of these, where a device makes them before they are asked for
  Speculated speculated = {};
  bool draws_by_history = false;  // the host has to know all tokens before the next is drawn
  Clock::time_point submitted = {};
  int64_t turn = 0;  // the lower, the sooner: the step in which it came, less those that its priority is worth

  // Kept by the scheduler.
  RequestRow row{0};  // of the request table, while it runs
  int32_t computed = 0, settled = 0;
  int32_t pending = 0;
  bool verifies = false;      // drafts of it are in flight: how long its text will be is not known
  bool followed = false;      // a draft model has slots for all tokens in its pages
  int32_t steps_to_try = 0;   // in which it is followed even if that does not pay
  bool drafted = false;       // followed, and its newest token was drawn: the model has its slot, or has put it off
  bool asked = true;          // the model, when its last step was planned, so it may be for the next; or none was yet
  int32_t passes = 0;         // of the model's, for its next drafts, that follow its last step at once
  int32_t waited = 0;         // rows of prompts that stood beside its first tokens
  int64_t last_step = 0;      // the newest that was launched with rows of it
  bool prefills = false;      // running, and has not been computed to its end since
  int32_t prefix_hit = -1;    // tokens of the prompt that were in the prefix tree; -1: has not run yet
  double queued_seconds = 0;  // before it ran for the first time
  bool retracted = false;     // goes ahead of its equals in the queue
  bool late = false;          // its last row is to be computed again: the mask was not ready to draw from it
  int64_t refused_at = -1;    // while it waits: the scheduler's departures when it last found no room
  const Sequence* awaited = nullptr;  // while it waits: a running request that computes a prefix of its tokens
  int32_t awaited_tokens = 0;         // how long that prefix is

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t length_ahead() const { return length() + pending; }
  int32_t generated() const { return length() - prompt_tokens; }
  int32_t remaining() const { return length_ahead() - computed; }
  bool runs() const { return row.value != 0; }
  bool speculates() const { return drafter || record; }
  bool wants_token() const { return length_ahead() < most_tokens; }
  bool awaits_mask() const { return late && !mask->ready(); }
  bool has_run() const { return prefix_hit >= 0; }
  // Whether it has rows for the next step. One that is sure to end with a pending token has none.
  bool can_launch() const {
    if (remaining() == 0 || awaits_mask()) return false;
    return pending == 0 || (wants_token() && !verifies && !followed);
  }
  // Rows of [computed, end) that its PromptResults wants; those before are in flight or have come.
  PositionRange kept_rows(int32_t end) const {
    const PositionRange missing = results.missing();
    return PositionRange{std::max(missing.begin, computed), missing.end}.before(end);
  }
  // How many of its first tokens may come from pages of others: rows that it wants are computed.
  int32_t shareable() const {
    return results.missing().empty() ? length() - 1 : std::min(length() - 1, results.missing().begin);
  }
};

}  // namespace quire::engine
