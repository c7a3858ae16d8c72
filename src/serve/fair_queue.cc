#include "serve/fair_queue.h"

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

FairQueue::Task FairQueue::pop() {
  check(!empty(), "nobody waits");
  const auto turn = turns_.begin();
  Task task = std::move(turn->tasks.front());
  turn->tasks.pop_front();
  --size_;
  if (turn->tasks.empty()) {
    by_caller_.erase(turn->caller);
    turns_.erase(turn);
  } else {
    turns_.splice(turns_.end(), turns_, turn);
  }
  return task;
}

}  // namespace quire::serve
