#include "engine/ahead_masks.h"

#include <utility>

#include "base/check.h"
#include "base/processor_time.h"

namespace quire::engine {
namespace {

constexpr std::chrono::milliseconds kQuick{5};  // of processor time

}  // namespace

const uint32_t* AheadMask::bits() const {
  check(ready(), "a mask that is not ready was asked");
  if (failure_) std::rethrow_exception(failure_);
  return bits_;
}

void AheadMask::drew(int32_t token) {
  check(ready() && !failure_, "a token was drawn without its mask");
  drawn_ = token;
  state_.store(State::idle, std::memory_order_relaxed);
}

void AheadMask::compute() {
  const std::chrono::nanoseconds start = thread_processor_time();
  try {
    if (drawn_ >= 0) mask_->accept(drawn_);
    bits_ = mask_->next();
  } catch (...) {
    failure_ = std::current_exception();
  }
  quick_ = thread_processor_time() - start < kQuick;
  state_.store(State::ready, std::memory_order_release);
}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::begin(const std::shared_ptr<AheadMask>& mask) {
  if (mask->state_.load(std::memory_order_relaxed) != AheadMask::State::idle) return;
  if (threads_.empty())  // the one for all masks first: should there be no other, none waits for ever
    for (const bool only_quick : {false, true}) threads_.emplace_back([this, only_quick] { work(only_quick); });
  mask->state_.store(AheadMask::State::begun, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    (mask->quick_ ? quick_ : others_).push_back(mask);
  }
  wake_.notify_all();
}

void MaskThreads::wait(const std::function<bool()>& holds, std::chrono::microseconds most) {
  if (holds()) return;
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, most, holds);
}

MaskThreads::Queue* MaskThreads::next_queue(bool only_quick) {
  if (!quick_.empty()) return &quick_;
  return only_quick || others_.empty() ? nullptr : &others_;
}

void MaskThreads::work(bool only_quick) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || next_queue(only_quick); });
    if (stopping_) return;
    Queue& queue = *next_queue(only_quick);
    std::shared_ptr<AheadMask> mask = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    if (mask.use_count() > 1) mask->compute();  // else its request is gone
    mask.reset();
    lock.lock();
    done_.notify_all();
  }
}

}  // namespace quire::engine
