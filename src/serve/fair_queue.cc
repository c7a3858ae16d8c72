#include "serve/fair_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire::serve {

bool FairQueue::push(const std::string& caller, Task task) {
  if (size_ >= most_) return false;
  const auto found = by_caller_.find(caller);
  if (found == by_caller_.end()) {
    turns_.push_back({caller, {}});
    by_caller_.emplace(caller, std::prev(turns_.end()));
    turns_.back().tasks.push_back(std::move(task));
  } else {
    std::deque<Task>& tasks = found->second->tasks;
    if (tasks.size() >= (most_ + 1) / 2) return false;
    tasks.push_back(std::move(task));
  }
  ++size_;
  return true;
}

// Few are passed: no more callers than tasks under way.
FairQueue::Turns::const_iterator FairQueue::next() const {
  return std::find_if(turns_.begin(), turns_.end(), [&](const Turn& turn) {
    const auto found = under_way_.find(turn.caller);
    return found == under_way_.end() || found->second < most_of_one_;
  });
}

bool FairQueue::ready() const { return next() != turns_.end(); }

FairQueue::Begun FairQueue::pop() {
  check(ready(), "nobody waits who may go on");
  const auto turn = by_caller_.at(next()->caller);
  Begun begun{turn->caller, std::move(turn->tasks.front())};
  turn->tasks.pop_front();
  --size_;
  ++under_way_[begun.caller];
  if (turn->tasks.empty()) {
    by_caller_.erase(turn->caller);
    turns_.erase(turn);
  } else {
    turns_.splice(turns_.end(), turns_, turn);
  }
  return begun;
}

void FairQueue::done(const std::string& caller) {
  const auto found = under_way_.find(caller);
  check(found != under_way_.end(), "this caller has nothing under way");
  if (--found->second == 0) under_way_.erase(found);
}

}  // namespace quire::serve
