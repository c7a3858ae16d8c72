// Steps on the CPU: computed when they are launched, and drawn from.
#pragma once
#include <optional>
#include <vector>

#include "engine/eagle_drafts.h"
#include "engine/runner.h"
#include "engine/step_device.h"
#include "engine/step_sampler.h"

namespace quire::engine {

class CpuSteps : public StepDevice {
 public:
  explicit CpuSteps(const StepDeviceParts& parts);
  void launch(Step& step) override;
  void draw(Step& step) override;
  void finish(Step&) override {}
  DraftModel* draft_model() override { return drafts_ ? &*drafts_ : nullptr; }

 private:
  void resolve_future_tokens(Batch& batch) const;
  void keep_newest_tokens(const Step& step);

  Runner runner_;
  Runner::Outputs outputs_ = {};  // of the step that was launched
  StepSampler sampler_;
  std::optional<EagleDrafts> drafts_;   // with a head
  std::vector<int32_t> newest_tokens_;  // [request rows] what a future token of the row stands for
};

}  // namespace quire::engine
