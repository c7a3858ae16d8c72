// What computes the engine's steps: its one door to a device.
//
//   launch(step)   in order. What the step needs of the host (its rows, the page table as it is now) is taken here.
//   draw(step)     behind it, before the next launch: its tokens. Steps before it may have been finished in between;
//                  where it draws by history they all are: its masks are ready then, and its history is whole.
//   finish(step)   in the same order, each after its draws: step.results are there when it returns.
//
// A device that answers at once (the CPU) computes in the first two; one that answers late (a GPU) is launched and goes
// on, and finish() waits for it. Until then the step stays where it is and belongs to the device, but for what its
// scheduler fills in before it draws. Several GPUs that compute a step together would be one device.
//
// Errors   cuda::DeviceError: the device computes nothing any more. Any other exception, cuda::OutOfMemory among them,
//          concerns that step alone.
#pragma once
#include <chrono>
#include <functional>
#include <memory>

#include "base/exec.h"
#include "engine/ahead_masks.h"
#include "engine/draft_model.h"
#include "engine/scheduler.h"
#include "engine/step.h"
#include "kv/request_table.h"
#include "model/eagle_head.h"
#include "model/model.h"

namespace quire::engine {

class StepDevice {
 public:
  virtual ~StepDevice() = default;
  virtual void launch(Step& step) = 0;
  virtual void draw(Step& step) = 0;
  virtual void finish(Step& step) = 0;
  virtual DraftModel* draft_model() { return nullptr; }  // that it computes beside the steps; null: none
};

// What a device is made of. All that is referred to outlives it.
struct StepDeviceParts {
  const model::Model& model;
  const SchedulerLimits& limits;
  Dtype kv_type;
  int32_t vocabulary;                      // ids that may be drawn
  bool deterministic;                      // as EngineOptions has it
  const model::EagleHead* head = nullptr;  // null: none
  kv::RequestTable& table;
  MaskThreads& masks;
  Exec& exec;
};
std::unique_ptr<StepDevice> make_step_device(const StepDeviceParts& parts);  // for exec's device
using StepDeviceMaker = std::function<std::unique_ptr<StepDevice>(const StepDeviceParts& parts)>;

inline constexpr std::chrono::milliseconds kMaskPatience{2};  // that a step has for masks that are not ready

// Masks that the rows of a step are drawn under: they are computed beside its forward pass, as soon as the tokens
// before are known, and for those that are not ready then the step waits a little.
void begin_masks(const Batch& batch, MaskThreads& masks);
void wait_for_masks(const Batch& batch, MaskThreads& masks);

}  // namespace quire::engine
