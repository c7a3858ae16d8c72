// A few threads for calls that take a while before their answer begins: large bodies, templates, grammars. They keep
// the io threads free for the streams of everybody else.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire::serve {

class Workers {
 public:
  explicit Workers(int threads, size_t most_waiting = 1024);
  ~Workers();  // joins; what has not begun is dropped

  // In order of arrival; must not throw. False: too many wait already, and this one was not taken.
  [[nodiscard]] bool run(std::function<void()> task);

 private:
  void loop();

  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::serve
