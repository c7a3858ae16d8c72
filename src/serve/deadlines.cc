#include "serve/deadlines.h"

namespace quire::serve {

Deadlines::~Deadlines() { stop(); }

Deadlines::Key Deadlines::add(Time when, std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  const Key key(when, ++added_);
  if (stopping_) return key;
  actions_.emplace(key, std::move(action));
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  changed_.notify_one();
  return key;
}

void Deadlines::call_off(const Key& key) {
  const std::lock_guard lock(mutex_);
  actions_.erase(key);
}

void Deadlines::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Deadlines::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (actions_.empty()) {
      changed_.wait(lock);
    } else if (const Time next = actions_.begin()->first.first; next > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, next);
    } else {
      auto due = actions_.extract(actions_.begin());
      lock.unlock();
      due.mapped()();
      due = {};  // what the action holds is let go without the lock, too
      lock.lock();
    }
  }
}

}  // namespace quire::serve
