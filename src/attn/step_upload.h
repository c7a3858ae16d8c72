// A step's inputs on their way to who computes it: a ring of copies that the host fills in turn and, for a GPU, the one
// copy in its memory that captured graphs read. The step's first kernel fills that one by itself: it reads the pinned
// copy whose turn it is. So the inputs cost the host no call, and the step no launch of their own; nothing is read back
// and nothing waits.
//
//   StepUpload upload(limits, 3, exec);
//   capture: write_metadata(shape, upload.inputs(), arena, exec); ...
//   step:    fill(upload.next()); check_step(...); upload.send(); graph.replay(exec);
//
// A pinned copy may be filled again when it has been read. The next step's first kernel says so, by the number of steps
// before it in a pinned word. Only a host that is the whole ring ahead of the GPU waits.
//
// On a CPU the ring is one copy, read where it was filled: a step has been computed when its call returns.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"

namespace quire::attn {

class StepUpload {
 public:
  // copies: of a GPU, that the host may fill before the first of them is read. drawn: where tokens are looked up that
  // the host does not know yet. exec outlives this.
  StepUpload(const Limits& limits, int32_t copies, Exec& exec, const DrawnTokens& drawn = {});
  StepUpload(const StepUpload&) = delete;
  StepUpload& operator=(const StepUpload&) = delete;

  StepInputs inputs() const;       // for the writer and who comes after; the same addresses for good
  const StepInputBuffers& next();  // to be filled for the next step
  uint32_t next_number() const { return static_cast<uint32_t>(sent_ + 1); }  // that step's
  // What next() gave is the next that a writer finds; one has to follow on the stream. Gives the inputs as the host has
  // filled them, which whoever comes before the writer reads.
  StepInputs send();
  void forget();  // that something was sent: perhaps no writer has followed

 private:
  const StepInputBuffers& upcoming() const { return ring_[sent_ % ring_.size()]; }
  void tell_turn();

  Exec& exec_;
  DrawnTokens drawn_;
  std::vector<StepInputBuffers> ring_;
  std::optional<StepInputBuffers> device_;  // none: a CPU
  Buffer fetched_;                          // pinned: steps whose inputs have been read
  Buffer turn_, first_turn_;                // the device's; pinned
  uint64_t sent_ = 0;
  bool is_lost_ = false;
};

}  // namespace quire::attn
