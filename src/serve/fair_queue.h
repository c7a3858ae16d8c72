// Tasks that wait, of many callers: each caller's in order, and the callers in turns, so that nobody waits for all that
// somebody else has asked for. A caller has only so many under way at a time: its others wait, and those of other
// callers pass them. Knows no threads and no locks.
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
  FairQueue(size_t most_waiting, int most_under_way_of_one)
      : most_(most_waiting), most_of_one_(most_under_way_of_one) {}

  // False: too many wait, or half of those that may are this caller's; then it was not taken.
  [[nodiscard]] bool push(const std::string& caller, Task task);
  struct Begun {
    std::string caller;
    Task task;
  };
  bool ready() const;                    // somebody who waits may have another one under way
  Begun pop();                           // of the caller whose turn it is; only when ready
  void done(const std::string& caller);  // with one that it had under way

 private:
  struct Turn {
    std::string caller;
    std::deque<Task> tasks;  // not empty
  };
  using Turns = std::list<Turn>;
  Turns::const_iterator next() const;

  const size_t most_;
  const int most_of_one_;
  size_t size_ = 0;
  Turns turns_;  // the first who may is next
  std::unordered_map<std::string, Turns::iterator> by_caller_;
  std::unordered_map<std::string, int> under_way_;  // those who have some
};

}  // namespace quire::serve
