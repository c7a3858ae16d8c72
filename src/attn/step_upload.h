// A step's inputs on their way to the GPU: a ring of pinned copies that the host fills in turn, and the one copy in the
// device's memory that captured graphs read. A step costs the host one upload and one launch; nothing is read back and
// nothing waits.
//
//   StepUpload upload(limits, 4, exec);
//   capture: write_metadata(shape, upload.inputs(), arena, exec); ...
//   step:    fill(upload.next()); check_step(...); upload.send(); graph.replay(exec);
//
// A pinned copy may be filled again when its upload is over. The writer says so itself, without a call: it is launched
// after the upload and puts the step's number into a pinned word. Only a host that is the whole ring ahead of the GPU
// waits.
#pragma once
#include <cstdint>
#include <vector>

#include "attn/step.h"
#include "base/buffer.h"
#include "base/exec.h"

namespace quire::attn {

class StepUpload {
 public:
  StepUpload(const Limits& limits, int32_t copies, Exec& exec);  // exec has a stream and outlives this
  StepUpload(const StepUpload&) = delete;
  StepUpload& operator=(const StepUpload&) = delete;

  StepInputs inputs() const;       // of the device, for the writer; the same addresses for good
  const StepInputBuffers& next();  // to be filled for the next step
  void send();                     // what next() gave; the writer of the step has to follow on the stream

 private:
  const StepInputBuffers& upcoming() const { return ring_[sent_ % ring_.size()]; }

  Exec& exec_;
  std::vector<StepInputBuffers> ring_;
  StepInputBuffers device_;
  Buffer arrived_;  // the number of the last step whose inputs have arrived
  uint64_t sent_ = 0;
};

}  // namespace quire::attn
