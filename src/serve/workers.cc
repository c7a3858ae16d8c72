#include "serve/workers.h"

#include <utility>

namespace quire::serve {

Workers::Workers(int threads_of_each, size_t most_waiting_of_each)
    : light_(most_waiting_of_each, threads_of_each), heavy_(most_waiting_of_each, threads_of_each) {
  for (int i = 0; i < threads_of_each; ++i)
    for (Lane* lane : {&light_, &heavy_}) threads_.emplace_back([this, lane] { loop(*lane); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Lane* lane : {&light_, &heavy_}) lane->changed.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Workers::run(Weight weight, const std::string& caller, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lane_of(weight);
  if (!lane.tasks.push(caller, std::move(task))) return false;
  lane.changed.notify_one();
  return true;
}

void Workers::loop(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    lane.changed.wait(lock, [&] { return stopping_ || lane.tasks.ready(); });
    if (stopping_) return;
    FairQueue::Begun begun = lane.tasks.pop();
    lock.unlock();
    begun.task();
    begun.task = nullptr;  // what it holds is let go without the lock
    lock.lock();
    lane.tasks.done(begun.caller);  // this thread takes what may begin now
  }
}

}  // namespace quire::serve
