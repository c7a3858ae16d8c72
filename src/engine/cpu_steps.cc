#include "engine/cpu_steps.h"

namespace quire::engine {

CpuSteps::CpuSteps(const StepDeviceParts& parts)
    : runner_(parts.model, parts.limits, parts.kv_type, parts.table, parts.exec, nullptr, false,
              parts.head ? &parts.head->features() : nullptr),
      sampler_(parts.vocabulary, parts.masks, parts.exec),
      newest_tokens_(parts.limits.running + 1) {
  if (parts.head) drafts_.emplace(*parts.head, parts.limits, parts.kv_type, parts.table, parts.exec);
}

void CpuSteps::launch(Step& step) {
  const Clock::time_point start = Clock::now();
  resolve_future_tokens(step.batch);
  outputs_ = runner_.run(step.batch);
  step.results.set_pooled(outputs_.pooled);
  step.results.time = Clock::now() - start;
}

void CpuSteps::draw(Step& step) {
  const Clock::time_point start = Clock::now();
  sampler_.run(step.batch, outputs_.logits, step.results);
  if (step.batch.has_trees()) runner_.keep_path(step.batch, step.results);
  const Clock::time_point drawn = Clock::now();
  if (drafts_) drafts_->extend(step.batch, step.results, outputs_.features);
  step.results.following = Clock::now() - drawn;
  keep_newest_tokens(step);
  step.results.time += Clock::now() - start;
}

void CpuSteps::resolve_future_tokens(Batch& batch) const {
  for (const Share& share : batch.shares)
    for (int32_t row = share.first_row; row < share.first_row + share.count; ++row)
      if (batch.token_ids[row] == kFutureToken) batch.token_ids[row] = newest_tokens_[share.row.value];
}

void CpuSteps::keep_newest_tokens(const Step& step) {
  for (size_t i = 0; i < step.batch.drawn.size(); ++i)
    if (const std::vector<ops::Sampled>& tokens = step.results.drawn[i].tokens; !tokens.empty())
      newest_tokens_[step.batch.shares[step.batch.drawn[i].share].row.value] = tokens.back().token;
}

}  // namespace quire::engine
