#include "attn/step_upload.h"

#include <algorithm>
#include <atomic>

#include "attn/step_upload_cuda.h"
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

// Limits of the step's own size: what was filled. Counts that a step does not have are whatever they are.
Limits size_of_step(const StepInputBuffers& filled, Limits limits) {
  const auto within = [](int32_t count, int32_t most) { return std::clamp(count, 0, most); };
  const int32_t runs = limits.journal_pages ? within(filled.journal_count(), limits.batch) : 0;
  int32_t pages = 0;
  for (int32_t i = 0; i < runs; ++i)
    pages = std::max(pages, filled.journal_runs()[i].begin + filled.journal_runs()[i].count);
  limits.journal_pages = within(pages, limits.journal_pages);
  limits.batch = std::max(within(filled.live(), limits.batch), runs);
  limits.query_rows = within(filled.query_rows(), limits.query_rows);
  limits.wanted_rows = within(filled.wanted_count(), limits.wanted_rows);
  return limits;
}

cuda::FetchArgs fetch_args(const StepInputBuffers& filled, const StepInputBuffers& device, const Limits& limits) {
  cuda::FetchArgs args{.from = filled.memory().data(), .to = device.memory().data(), .arrays = {}, .count = 0};
  const auto add = [&](const void* begin, int64_t bytes) {
    if (bytes == 0) return;
    const auto offset = static_cast<const std::byte*>(begin) - args.from;
    args.arrays[args.count++] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)};
  };
  const Limits l = size_of_step(filled, limits);
  int64_t numbers = 0;
#define ONE(type, name) numbers += sizeof(type);
#define MANY(type, name, elements)
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  add(args.from, numbers);  // which lie side by side
#define ONE(type, name)
#define MANY(type, name, elements) add(filled.name(), (elements) * static_cast<int64_t>(sizeof(type)));
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  return args;
}

// Numbers of steps wrap around; those that are compared lie close together.
bool is_past(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) >= 0; }

}  // namespace

StepUpload::StepUpload(const Limits& limits, int32_t copies, Exec& exec)
    : exec_(exec), limits_(limits), ring_(make_ring(limits, copies, exec)) {
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
  if (device_) cuda::fetch(fetch_args(filled, *device_, limits_), exec_);
}

}  // namespace quire::attn
