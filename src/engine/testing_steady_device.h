// For tests: exec's device with another clock, by which every step took as long, whatever its rows, and nothing was
// waited for. So a drafter's drafts seem to cost nothing and are verified, however busy the machine is. (A head's passes
// are measured by the scheduler's clock.)
#pragma once
#include <chrono>
#include <memory>
#include <utility>

#include "engine/step_device.h"

namespace quire::engine::testing {

class SteadyDevice final : public StepDevice {
 public:
  explicit SteadyDevice(std::unique_ptr<StepDevice> device) : device_(std::move(device)) {}

  void launch(Step& step) override { device_->launch(step); }
  void draw(Step& step) override { device_->draw(step); }
  void finish(Step& step) override {
    device_->finish(step);
    step.results.time = std::chrono::milliseconds(1);
    if (step.results.idle) step.results.idle = std::chrono::duration<double>(0);
  }
  DraftModel* draft_model() override { return device_->draft_model(); }

 private:
  std::unique_ptr<StepDevice> device_;
};

inline std::unique_ptr<StepDevice> steady_device(const StepDeviceParts& parts) {
  return std::make_unique<SteadyDevice>(make_step_device(parts));
}

}  // namespace quire::engine::testing
