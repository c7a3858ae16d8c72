#include "engine/draft_slots.h"

#include <algorithm>
#include <utility>

namespace quire::engine {

// The same count as Scheduler::settle_rows has. A token that was drawn and ends its request may have no page.
DraftSlots draft_slots(const Share& share, const StepResults& results, int32_t room) {
  const int32_t begin = share.position + (share.drafted ? 1 : 0);
  if (!share.draws) return {.begin = begin, .end = share.end(), .committed = share.end()};
  int32_t drawn = 0, newest = -1;
  std::vector<int32_t> path = walked_rows(share, results);
  for (const int32_t row : path)
    for (const ops::Sampled& sampled : results.drawn[share.drawn.begin + row].tokens) {
      ++drawn;
      newest = sampled.token;
    }
  if (!path.empty()) path.erase(path.begin());  // the text's own
  for (int32_t& row : path) row += share.text_end() - 1 - share.position;
  const int32_t committed = share.text_end() + drawn - 1;
  return {.begin = begin,
          .end = std::min(committed + 1, room),
          .committed = committed,
          .newest = newest,
          .path = std::move(path)};
}

}  // namespace quire::engine
