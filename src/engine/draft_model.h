// A model that drafts for all requests of a step together, beside the target that computes the steps: in the
// scheduler's words. drafter.h is for one request, and knows nothing but its text.
//
// It has keys and values of its own for every token that is in pages, and for the newest token of a request as soon as
// that is drawn: so a page that requests share is whole for it too, and a request's first draft is there before anybody
// asks for it. Each further one takes a pass of the model, over all requests that want one.
//
// Drafts leave keys and values behind the newest token's, in pages that are the request's; the next step writes over
// them.
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
  double least;                     // a chain ends with the first draft whose path is not as likely
  const DraftRecord* record;        // how likely a draft is of which the model says so
  std::vector<DraftToken>* drafts;  // empty before; hits are what the model says
};

class DraftModel {  // used by the thread that steps
 public:
  virtual ~DraftModel() = default;
  // What it holds likeliest after the newest token of a row, whose last step drew that token; of a request that may be
  // drafted for.
  virtual DraftToken first(RequestRow row) const = 0;
  // Chains that begin with it. Returns how many passes over the model that took.
  virtual int32_t draft(std::span<const DraftsWanted> wanted) = 0;
};

}  // namespace quire::engine
