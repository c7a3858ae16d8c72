// Which of a head's slots a step gives (eagle_drafts.h): of all that it put into pages, and of the token that was
// drawn, if that has a page.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/batch.h"
#include "engine/step.h"

namespace quire::engine {

struct DraftSlots {  // of a share, that are computed: from `begin` to `end`; none where they are equal
  int32_t begin, end;
  int32_t committed;               // tokens that are in pages after the step
  int32_t newest = -1;             // the token that was drawn last, at position `committed`; -1: none was
  std::vector<int32_t> path = {};  // rows of drafts that came, in the share
};

// room: tokens that the pages of the share's request have room for.
DraftSlots draft_slots(const Share& share, const StepResults& results, int32_t room);

}  // namespace quire::engine
