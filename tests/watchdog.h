// A time limit on what may hang where nothing can stop it, as a kernel on a GPU: the process ends with a failure and
// says of what.
//
//   const Watchdog watchdog(std::chrono::seconds(20), "prefill of pages of 16");
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace quire::testing {

class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string what)
      : watcher_([this, limit, what = std::move(what)] { watch(limit, what); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    watcher_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch(std::chrono::milliseconds limit, const std::string& what) {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, limit, [this] { return is_over_; })) return;
    std::fprintf(stderr, "[  FAILED  ] not over after %lld ms: %s\n", static_cast<long long>(limit.count()),
                 what.c_str());
    std::fflush(nullptr);
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread watcher_;  // last: it uses all the others
};

}  // namespace quire::testing
