// A step's inputs on their way to who computes it: a ring of copies that the host fills in turn and, for a GPU, the one
// copy in its memory that captured graphs read, filled by a kernel that reads the host's pinned memory. A step costs
// the host two launches; nothing is read back and nothing waits.
//
//   StepUpload upload(limits, 4, exec);
//   capture: write_metadata(shape, upload.inputs(), arena, exec); ...
//   step:    fill(upload.next()); check_step(...); upload.send(); graph.replay(exec);
//
// A pinned copy may be filled again when its upload is over. The writer says so itself, without a call: it is launched
// after the upload and puts the step's number into a pinned word. Only a host that is the whole ring ahead of the GPU
// waits.
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
  StepUpload(const Limits& limits, int32_t copies, Exec& exec);  // copies: for a GPU; exec outlives this
  StepUpload(const StepUpload&) = delete;
  StepUpload& operator=(const StepUpload&) = delete;

  StepInputs inputs() const;       // for the writer and who comes after; the same addresses for good
  const StepInputBuffers& next();  // to be filled for the next step
  uint32_t next_number() const { return static_cast<uint32_t>(sent_ + 1); }  // that step's
  void send();  // what next() gave; the writer of the step has to follow on the stream

 private:
  const StepInputBuffers& upcoming() const { return ring_[sent_ % ring_.size()]; }

  Exec& exec_;
  Limits limits_;
  std::vector<StepInputBuffers> ring_;
  std::optional<StepInputBuffers> device_;  // none: a CPU
  Buffer arrived_;                          // the number of the last step whose inputs have arrived
  uint64_t sent_ = 0;
};

}  // namespace quire::attn
