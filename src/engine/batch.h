// The rows that one step computes: for each chosen request, the next `count` tokens after those in its pages.
//
// The scheduler fills it, the runner turns it into logits and last rows, the sampler into tokens and logprobs, the
// scheduler settles the results. A batch is a value: it names requests by their ids and has all that is needed to
// compute it, so a request may be retracted or end while a step with rows of it is in flight.
//
//   shares      [ a: 1 row | b: 1 row | c: a chunk of 4  ]      those that decode first, then chunks of prompts
//   token_ids   [ 17       | future   | 5   9   2   7    ]      b's token is being drawn by a step in flight
//   drawn         0          1                      5           rows from whose logits tokens are drawn
//   scored                              2   3   4               rows whose logits tell how likely the next token was
//   pooled                                                      rows that are wanted themselves
//
// These three lists are the only place that says which rows are wanted, and in which order: results have theirs.
//
// A share may end with drafts (drafter.h): then it draws from the last row of its text and from the rows of all drafts,
// each only where the draws before it gave the drafts up to it. Where drafts of some share branch (draft_tree.h), every
// share has one row of its text.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "engine/ahead_masks.h"
#include "engine/draft_tree.h"
#include "engine/drafter.h"
#include "engine/prompt_results.h"
#include "engine/request.h"

namespace quire::engine {

// In place of a token that the host does not know yet: the newest that was drawn for the share's request row. Steps are
// computed in order, so it is known to the device when the row's turn comes.
inline constexpr int32_t kFutureToken = -1;

struct Share {
  RequestId id;
  RequestRow row;           // of the request table
  int32_t position;         // of its first row; the pages of all are reserved
  int32_t count;            // rows
  int32_t drafts = 0;       // the last of them, which are no tokens of the request yet
  bool by_model = false;    // a draft model has made them
  bool prefills = false;    // a chunk of a prompt; else it decodes
  bool draws = false;       // a token, from the logits of its text's last row
  bool by_history = false;  // and for that the host has to know all tokens before it
  bool sits_out = false;    // it does not draw after all: its mask is late, or its request has ended meanwhile
  bool followed = false;    // a draft model computes its slots of these rows
  bool drafted = false;     // and has that of the first row, or has put it off: the step before drew its token
  int32_t passes = 0;     // of a draft model, from the token that is drawn, at once: pages for as many as there may be
                          // are reserved behind it; all shares of a batch that have some have the same number
  int32_t generated = 0;  // tokens of the request before that one
  PositionRange kept = {};  // rows among them whose logits, or which themselves, its PromptResults wants
  std::shared_ptr<const Request> request = {};
  std::shared_ptr<AheadMask> mask = {};  // null: any token may be drawn

  struct Slice {
    int32_t begin = 0, count = 0;
  };
  int32_t first_row = 0;  // in the batch; this and what follows is filled by Batch::add
  Slice drawn = {}, scored = {}, pooled = {}, history = {};  // its part of the batch's lists
  bool branches = false;                                     // its drafts are no chain

  int32_t end() const { return position + count; }
  int32_t text_end() const { return end() - drafts; }
  bool awaits_mask() const { return mask && !sits_out && !mask->ready(); }
};

struct WantedRow {
  int32_t row, share;   // in the batch
  int32_t token = -1;   // that is scored
  int32_t follows = 0;  // of a draft: which of the share's drawn rows; 0: the text's last
};

struct Batch {
  int64_t step = 0;     // ascending by one from step to step
  bool waited = false;  // for the tokens of the step before, so that the device had nothing to do
  std::vector<Share> shares = {};
  std::vector<int32_t> token_ids = {};                          // [rows]
  std::vector<WantedRow> drawn = {}, scored = {}, pooled = {};  // each in the order of the shares
  std::vector<int32_t> history = {};  // of those that draw with penalties: all tokens, then drafts

  bool empty() const { return shares.empty(); }
  int32_t rows() const { return static_cast<int32_t>(token_ids.size()); }
  bool is_followed() const {  // any of it
    return std::any_of(shares.begin(), shares.end(), [](const Share& share) { return share.followed; });
  }
  int32_t prompt_rows() const {
    int32_t count = 0;
    for (const Share& share : shares) count += share.prefills ? share.count : 0;
    return count;
  }
  bool only_single_tokens() const { return token_ids.size() == shares.size(); }
  bool has_trees() const { return std::ranges::any_of(shares, &Share::branches); }
  int32_t with_logits() const { return static_cast<int32_t>(drawn.size() + scored.size()); }
  bool draws_by_history() const { return std::ranges::any_of(shares, &Share::by_history); }  // any of it
  // Whether the host has something to do between its logits and its tokens.
  bool is_cut() const { return !pooled.empty() || draws_by_history(); }
  int32_t wanted_rows() const { return with_logits() + static_cast<int32_t>(pooled.size()); }

  // tokens: of the share's request, as far as they are known. drafts: as many as the share has, after them.
  void add(Share given, std::span<const int32_t> tokens, std::span<const DraftToken> drafts = {}) {
    const auto index = static_cast<int32_t>(shares.size());
    Share& share = shares.emplace_back(std::move(given));
    share.first_row = rows();
    for (int32_t p = share.position; p < share.text_end(); ++p)
      token_ids.push_back(p < std::ssize(tokens) ? tokens[p] : kFutureToken);
    for (const DraftToken& draft : drafts) token_ids.push_back(draft.token);
    if (share.draws) {
      share.drawn = {static_cast<int32_t>(drawn.size()), 1 + share.drafts};
      const int32_t first = rows() - share.drawn.count;
      drawn.push_back({first, index});
      for (int32_t i = 0; i < share.drafts; ++i)
        drawn.push_back({.row = first + 1 + i, .share = index, .follows = 1 + parent_of(drafts, i)});
      share.branches = !is_chain(drafts);
    }
    if (share.draws && share.request && penalises(share.request->sampling)) {
      share.history = {static_cast<int32_t>(history.size()), share.end()};
      history.insert(history.end(), tokens.begin(), tokens.end());
      history.resize(share.history.begin + share.text_end(), kFutureToken);
      for (const DraftToken& draft : drafts) history.push_back(draft.token);
    }
    if (share.kept.empty()) return;
    const bool pools = share.request && share.request->pooling != Pooling::none;
    std::vector<WantedRow>& list = pools ? pooled : scored;
    (pools ? share.pooled : share.scored) = {static_cast<int32_t>(list.size()), share.kept.count()};
    for (int32_t p = share.kept.begin; p < share.kept.end; ++p)
      list.push_back({share.first_row + p - share.position, index, pools ? -1 : tokens[p + 1]});
  }
  void clear() {
    waited = false;
    shares.clear();
    for (std::vector<int32_t>* ids : {&token_ids, &history}) ids->clear();
    for (std::vector<WantedRow>* rows : {&drawn, &scored, &pooled}) rows->clear();
  }
};

}  // namespace quire::engine
