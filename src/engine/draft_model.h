// A model that drafts for all requests of a step together, beside the target that computes the steps: in the
// scheduler's words. drafter.h is for one request, and knows nothing but its text.
//
// It has keys and values of its own for the tokens in the pages of a request that it follows (follow_budget.h). Those
// of the newest tokens may be put off until somebody asks for drafts (catch_up); a page that is full is whole. The
// first draft of a request is what its newest token's slot says; each further one takes a pass of the model, over all
// requests that want one. A page that requests share may be one that it has nothing of: who begins with such a page is
// not followed, or computes it again, while others read it.
//
// Chains leave keys and values behind the newest token's, in pages that are the request's; the next step writes over
// them. Those of trees (draft_tree.h) are the model's own business.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "engine/draft_record.h"
#include "engine/drafter.h"

namespace quire::engine {

struct DraftsWanted {
  RequestRow row;
  int32_t position;                 // of its newest token
  int32_t most;                     // drafts; their pages are reserved
  double least;                     // a branch may end with the first draft whose path is not as likely: those behind
                                    // it are not worth a pass
  const DraftRecord* record;        // how likely a draft is of which the model says so
  std::vector<DraftToken>* drafts;  // empty before; hits are what the model says, the order is by the record's
};

class DraftModel {  // used by the thread that steps
 public:
  virtual ~DraftModel() = default;
  // Whether it has keys and values for all tokens of these pages, which are full.
  virtual bool has_slots(std::span<const PageId> pages) const = 0;
  // Of requests that it follows, whose last steps drew their newest tokens: computes what it has put off of them, so
  // that their first drafts are known.
  virtual void catch_up(std::span<const RequestRow> rows) = 0;
  // What it holds likeliest after the newest token of a row that was caught up since its last step.
  virtual DraftToken first(RequestRow row) const = 0;
  // Chains that begin with it, or trees. Returns how many passes over the model that took. A model may have made them
  // before it is asked, behind the step that drew the newest token (SchedulerLimits::drafts_at_once): for requests
  // whose share said so. Others have their first draft.
  virtual int32_t draft(std::span<const DraftsWanted> wanted) = 0;
};

}  // namespace quire::engine
