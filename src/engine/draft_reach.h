// How deep a draft model's drafts of one request usually reach, for a device that has to make them before it is known
// what comes: so many passes are made as usually pay (DraftBudget::passes).
//
//   chance k   that a draft which stands k tokens behind the text comes: the paths of all drafts that do, together
//
// A mean over rounds that forgets. Depths that no pass was made for are taken to go on as those before them.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafter.h"

namespace quire::engine {

class DraftReach {
 public:
  explicit DraftReach(int32_t deepest);

  std::span<const double> chances() const { return chances_; }  // of depth 1 first; none is higher than the one before
  void add(std::span<const DraftToken> drafts);  // of a round, as likely as they are known to come; none: nothing is

 private:
  std::vector<double> chances_;
};

}  // namespace quire::engine
