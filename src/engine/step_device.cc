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
  for (const Share& share : batch.shares)
    if (share.mask && !share.sits_out) masks.begin(share.mask);
}

void wait_for_masks(const Batch& batch, MaskThreads& masks) {
  masks.wait([&] { return std::ranges::none_of(batch.shares, &Share::awaits_mask); }, kMaskPatience);
}

}  // namespace quire::engine
