#include "attn/step_upload.h"

#include <algorithm>
#include <atomic>

#include "attn/step_upload_cuda.h"
#include "base/check.h"
#include "base/device_wait.h"

namespace quire::attn {
namespace {

// One more than the host may be ahead: that a copy has been read is said a step later.
std::vector<StepInputBuffers> make_ring(const Limits& limits, int32_t copies, const Exec& exec) {
  check(copies > 0, "a ring of ", copies, " copies of a step's inputs");
  check(copies < StepSource::kMostCopies, "a ring of ", copies, " copies of a step's inputs, below ",
        StepSource::kMostCopies);
  std::vector<StepInputBuffers> ring;
  for (int32_t i = 0; i < (exec.stream() ? copies + 1 : 1); ++i)
    ring.emplace_back(limits, exec.stream() ? Place::pinned : Place::host);
  return ring;
}

template <class T>
T& only(const Buffer& buffer) {
  return *reinterpret_cast<T*>(buffer.data());
}

// Numbers of steps wrap around; those that are compared lie close together.
bool is_past(uint32_t number, uint32_t other) { return static_cast<int32_t>(number - other) >= 0; }

}  // namespace

StepUpload::StepUpload(const Limits& limits, int32_t copies, Exec& exec, const DrawnTokens& drawn)
    : exec_(exec), drawn_(drawn), ring_(make_ring(limits, copies, exec)) {
  if (!exec.stream()) return;
  device_.emplace(limits, Place::device);
  fetched_ = Buffer(sizeof(uint32_t), Place::pinned);
  turn_ = Buffer(sizeof(StepTurn), Place::device);
  first_turn_ = Buffer(sizeof(StepTurn), Place::pinned);
  tell_turn();
}

// The device counts its steps by itself from here on.
void StepUpload::tell_turn() {
  exec_.wait();
  only<uint32_t>(fetched_) = static_cast<uint32_t>(sent_);
  only<StepTurn>(first_turn_) = {.copy = static_cast<uint32_t>(sent_ % ring_.size()),
                                 .fetched = static_cast<uint32_t>(sent_)};
  exec_.stream()->copy(turn_.data(), first_turn_.data(), sizeof(StepTurn));
  is_lost_ = false;
}

StepInputs StepUpload::inputs() const {
  if (!device_) return ring_.front().inputs();
  StepInputs inputs = device_->inputs();
  StepSource& source = inputs.source;
  for (const StepInputBuffers& copy : ring_) source.copies[source.count++] = copy.memory().data();
  source.device = device_->memory().data();
  source.turn = &only<StepTurn>(turn_);
  source.fetched = &only<uint32_t>(fetched_);
  source.drawn = drawn_;
  return inputs;
}

// Steps are numbered from 1, and the copy of step n was last used for step n - copies.
const StepInputBuffers& StepUpload::next() {
  if (is_lost_) tell_turn();
  if (!device_ || sent_ < ring_.size()) return upcoming();
  const auto before = static_cast<uint32_t>(sent_ + 1 - ring_.size());
  const std::atomic_ref fetched(only<uint32_t>(fetched_));
  const auto is_read = [&] { return is_past(fetched.load(std::memory_order_acquire), before); };
  // Where the stream is over, all have been read.
  quire::cuda::wait_for_device(is_read, *exec_.stream(), quire::cuda::kStreamPatience);
  return upcoming();
}

StepInputs StepUpload::send() {
  const StepInputBuffers& filled = upcoming();
  ++sent_;
  filled.number() = static_cast<uint32_t>(sent_);
  return filled.inputs();
}

void StepUpload::forget() { is_lost_ = device_.has_value(); }

namespace cuda {

FetchArgs fetch_args(const StepShape& shape, const StepInputs& inputs, const Limits& limits) {
  FetchArgs args{.in = inputs, .arrays = {}, .count = 0, .tokens = FetchArgs::kMostArrays};
  const auto add = [&](const void* begin, int64_t bytes) {
    if (bytes == 0) return;
    const auto offset = static_cast<const std::byte*>(begin) - inputs.source.device;
    args.arrays[args.count++] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)};
  };
  Limits l = limits;
  l.batch = shape.captured;
  l.query_rows = std::min(limits.query_rows, shape.query_rows);
  l.wanted_rows = std::min(limits.wanted_rows, l.query_rows);
  l.journal_pages = 0;
  if (shape.mode != Mode::verify_tree) l.draft_tokens = 0;  // no masks
  int64_t numbers = 0;
#define ONE(type, name) numbers += sizeof(type);
#define MANY(type, name, elements)
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  add(inputs.source.device, numbers);  // which lie side by side
#define ONE(type, name)
#define MANY(type, name, elements) add(inputs.name, (elements) * static_cast<int64_t>(sizeof(type)));
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  const auto ids = reinterpret_cast<const std::byte*>(inputs.input_ids) - inputs.source.device;
  for (uint32_t i = 0; l.query_rows > 0 && i < static_cast<uint32_t>(args.count); ++i)
    if (args.arrays[i].offset == ids) args.tokens = i;
  return args;
}

}  // namespace cuda
}  // namespace quire::attn
