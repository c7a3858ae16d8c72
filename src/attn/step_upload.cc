#include "attn/step_upload.h"

#include <atomic>

#include "base/check.h"

namespace quire::attn {
namespace {

Exec& with_stream(Exec& exec) {
  check(exec.stream() != nullptr, "inputs are sent to a GPU by an Exec with a stream");
  return exec;
}

std::vector<StepInputBuffers> pinned_copies(const Limits& limits, int32_t copies) {
  check(copies > 0, "a ring of ", copies, " copies of a step's inputs");
  std::vector<StepInputBuffers> ring;
  for (int32_t i = 0; i < copies; ++i) ring.emplace_back(limits, Place::pinned);
  return ring;
}

uint32_t& word(const Buffer& buffer) { return *reinterpret_cast<uint32_t*>(buffer.data()); }

// Numbers of steps wrap around; those that are compared lie close together.
bool is_past(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) >= 0; }

}  // namespace

StepUpload::StepUpload(const Limits& limits, int32_t copies, Exec& exec)
    : exec_(with_stream(exec)),
      ring_(pinned_copies(limits, copies)),
      device_(limits, Place::device),
      arrived_(sizeof(uint32_t), Place::pinned) {
  word(arrived_) = 0;
}

StepInputs StepUpload::inputs() const {
  StepInputs inputs = device_.inputs();
  inputs.arrived = &word(arrived_);
  return inputs;
}

// Steps are numbered from 1, and the copy of step n was last used for step n - copies.
const StepInputBuffers& StepUpload::next() {
  if (sent_ >= ring_.size()) {
    const auto before = static_cast<uint32_t>(sent_ + 1 - ring_.size());
    const uint32_t arrived = std::atomic_ref(word(arrived_)).load(std::memory_order_acquire);
    if (!is_past(arrived, before)) exec_.wait();
  }
  return upcoming();
}

void StepUpload::send() {
  const StepInputBuffers& filled = upcoming();
  ++sent_;
  filled.number() = static_cast<uint32_t>(sent_);
  exec_.stream()->copy(device_.memory().data(), filled.memory().data(), filled.memory().size());
}

}  // namespace quire::attn
