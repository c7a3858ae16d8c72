// The first kernel of a step on a GPU takes its inputs from the pinned copy whose turn it is (step_upload.h).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "attn/step.h"

namespace quire::attn::cuda {

inline constexpr int32_t kStepNumbers = 0
#define ONE(type, name) +1
#define MANY(type, name, elements)
    QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
    ;

// The copy of one step, to be read past the caches (__ldcv): the host has written it since it was last read.
class PinnedCopy {
 public:
  __device__ PinnedCopy(const StepSource& source, const StepTurn& turn)
      : copy_(source.copies[turn.copy]), device_(source.device) {}

  __device__ const std::byte* place(const void* on_device) const {  // of what is to come there
    return copy_ + (static_cast<const std::byte*>(on_device) - device_);
  }

 private:
  const std::byte* copy_;
  const std::byte* device_;
};

__device__ inline StepTurn turn_of(const StepSource& source) {
  const uint2 words = __ldcg(reinterpret_cast<const uint2*>(source.turn));
  return {.copy = words.x, .fetched = words.y};
}

// By one thread, when no other will look at it in this step any more.
__device__ inline void end_turn(const StepSource& source, const StepTurn& turn) {
  const uint32_t next = turn.copy + 1;
  *source.turn = {.copy = next < source.count ? next : 0, .fetched = turn.fetched + 1};
}

// By one thread. That the copies of all steps before have been read is said here, before this one's are asked for: the
// word is on its way to the host while they come.
__device__ inline void say_what_was_fetched(const StepSource& source, const StepTurn& turn) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(source.fetched), "r"(turn.fetched) : "memory");
}

// By one thread.
__device__ inline void begin_time(const StepSource& source) {
  StepClock* const clock = source.drawn.clock;
  if (clock == nullptr) return;
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  clock->idle = now - __ldcg(&clock->ended);
  clock->begun = now;
}

// What is behind the step's rows may be anything, and stays so.
__device__ inline int32_t known_token(const StepSource& source, int32_t id) {
  const int32_t row = row_of_future_token(id);
  return row >= 0 && row < source.drawn.rows ? __ldcg(source.drawn.of_row + row) : id;
}

}  // namespace quire::attn::cuda
