// A few threads for calls that take a while before their answer begins: large bodies, templates, grammars. They keep
// the io threads free for the streams of everybody else.
//
// Light tasks and heavy ones have threads of their own, so that a light one never waits for heavy ones; within each,
// callers take turns (fair_queue.h), and no caller has all the threads, unless there is one alone.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "serve/fair_queue.h"

namespace quire::serve {

enum class Weight : uint8_t { light, heavy };

class Workers {
 public:
  explicit Workers(int threads_of_each, size_t most_waiting_of_each = 1024);
  ~Workers();  // joins; what has not begun is dropped

  // Must not throw. False: too many wait already, and this one was not taken.
  [[nodiscard]] bool run(Weight weight, const std::string& caller, std::function<void()> task);

 private:
  struct Lane {
    Lane(size_t most_waiting, int threads) : tasks(most_waiting, std::max(threads - 1, 1)) {}
    FairQueue tasks;
    std::condition_variable changed;
  };
  void loop(Lane& lane);
  Lane& lane_of(Weight weight) { return weight == Weight::light ? light_ : heavy_; }

  std::mutex mutex_;
  Lane light_, heavy_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::serve
