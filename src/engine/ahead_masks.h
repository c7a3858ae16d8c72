// Masks of allowed tokens, computed beside the forward pass, on threads of their own.
//
//   begin    before the pass, for each request that is to draw: its mask is told the last token and asked for the next
//   wait     after it, for masks that are all but ready
//   bits     at the draw, of a mask that is ready; drew() afterwards
//
// A mask that is late holds up its own request and no other: the row is computed again when the mask is ready
// (scheduler.h). Masks that have been quick do not queue behind others. What a mask throws is thrown by bits(), so it
// ends its own request too.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/token_mask.h"

namespace quire::engine {

class AheadMask {  // one request's; of the thread that steps, but for what is computed
 public:
  explicit AheadMask(std::shared_ptr<TokenMask> mask) : mask_(std::move(mask)) {}

  bool ready() const { return state_.load(std::memory_order_acquire) == State::ready; }
  const uint32_t* bits() const;  // when it is ready: as TokenMask::next()
  void drew(int32_t token);      // when it is ready; it is not afterwards

 private:
  friend class MaskThreads;
  enum class State : uint8_t { idle, begun, ready };
  void compute();

  std::shared_ptr<TokenMask> mask_;
  std::atomic<State> state_ = State::idle;
  bool quick_ = false;  // the last time; the first time nobody knows
  int32_t drawn_ = -1;  // that the mask was not told of yet
  const uint32_t* bits_ = nullptr;
  std::exception_ptr failure_;
};

class MaskThreads {  // used by the thread that steps; its own begin with the first mask
 public:
  MaskThreads() = default;
  ~MaskThreads();  // waits for masks that are being computed; those that queue are left as they are

  void begin(const std::shared_ptr<AheadMask>& mask);  // nothing, where it was begun since its last draw
  // Until that holds, which is asked whenever a mask got ready, or the time is over.
  void wait(const std::function<bool()>& holds, std::chrono::microseconds most);

 private:
  using Queue = std::deque<std::shared_ptr<AheadMask>>;
  void work(bool only_quick);
  Queue* next_queue(bool only_quick);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Queue quick_, others_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
