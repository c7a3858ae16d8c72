// What is to be done at a time, unless it is called off before: one thread that sleeps until the next one. It starts
// with the first, so that a server without time limits has none.
//
// Actions run one at a time, without a lock, and must not block.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace quire::serve {

class Deadlines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Key = std::pair<Time, uint64_t>;

  Deadlines() = default;
  ~Deadlines();  // stop()

  Key add(Time when, std::function<void()> action);
  void call_off(const Key& key);  // a deadline that is over is ignored; its action may still run
  void stop();                    // joins the thread; what is left never happens

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::function<void()>> actions_;
  uint64_t added_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire::serve
