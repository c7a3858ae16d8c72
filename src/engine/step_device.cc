#include "engine/step_device.h"

#include <algorithm>

#include "engine/cpu_steps.h"
#include "engine/gpu_steps.h"

namespace quire::engine {

std::unique_ptr<StepDevice> make_step_device(const StepDeviceParts& parts) {
  if (parts.exec.device() == Device::cuda) return std::make_unique<GpuSteps>(parts);
  return std::make_unique<CpuSteps>(parts);
}

void begin_masks(const Batch& batch, MaskThreads& masks) {
  for (const WantedRow& row : batch.drawn)
    if (const auto& mask = batch.shares[row.share].mask) masks.begin(mask);
}

void wait_for_masks(const Batch& batch, MaskThreads& masks) {
  const auto are_ready = [&] {
    return std::all_of(batch.drawn.begin(), batch.drawn.end(), [&](const WantedRow& row) {
      const AheadMask* const mask = batch.shares[row.share].mask.get();
      return !mask || mask->ready();
    });
  };
  masks.wait(are_ready, kMaskPatience);
}

}  // namespace quire::engine
