// Tasks that wait, of many callers: each caller's in order, and the callers in turns, so that nobody waits for all that
// somebody else has asked for. Knows no threads and no locks.
#pragma once
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>

namespace quire::serve {

class FairQueue {
 public:
  using Task = std::function<void()>;
  explicit FairQueue(size_t most) : most_(most) {}

  // False: too many wait, or half of those that may are this caller's; then it was not taken.
  [[nodiscard]] bool push(const std::string& caller, Task task);
  Task pop();  // of the caller whose turn it is; not when it is empty
  bool empty() const { return size_ == 0; }

 private:
  struct Turn {
    std::string caller;
    std::deque<Task> tasks;  // not empty
  };
  const size_t most_;
  size_t size_ = 0;
  std::list<Turn> turns_;  // the first is next
  std::unordered_map<std::string, std::list<Turn>::iterator> by_caller_;
};

}  // namespace quire::serve
