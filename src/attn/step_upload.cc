#include "attn/step_upload.h"

#include <atomic>

#include "base/check.h"

namespace quire::attn {
namespace {

std::vector<StepInputBuffers> make_ring(const Limits& limits, int32_t copies, const Exec& exec) {
  check(copies > 0, "a ring of ", copies, " copies of a step's inputs");
  std::vector<StepInputBuffers> ring;
  for (int32_t i = 0; i < (exec.stream() ? copies : 1); ++i)
    ring.emplace_back(limits, exec.stream() ? Place::pinned : Place::host);
  return ring;
}

uint32_t& word(const Buffer& buffer) { return *reinterpret_cast<uint32_t*>(buffer.data()); }

// Numbers of steps wrap around; those that are compared lie close together.
bool is_past(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) >= 0; }

}  // namespace

StepUpload::StepUpload(const Limits& limits, int32_t copies, Exec& exec)
    : exec_(exec), ring_(make_ring(limits, copies, exec)) {
  if (!exec.stream()) return;
  device_.emplace(limits, Place::device);
  arrived_ = Buffer(sizeof(uint32_t), Place::pinned);
  word(arrived_) = 0;
}

StepInputs StepUpload::inputs() const {
  if (!device_) return ring_.front().inputs();
  StepInputs inputs = device_->inputs();
  inputs.arrived = &word(arrived_);
  return inputs;
}

// Steps are numbered from 1, and the copy of step n was last used for step n - copies.
const StepInputBuffers& StepUpload::next() {
  if (device_ && sent_ >= ring_.size()) {
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
  if (device_) exec_.stream()->copy(device_->memory().data(), filled.memory().data(), filled.memory().size());
}

}  // namespace quire::attn
