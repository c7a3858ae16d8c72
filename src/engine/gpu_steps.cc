#include "engine/gpu_steps.h"

#include <algorithm>
#include <exception>
#include <span>

#include "base/check.h"
#include "base/device_wait.h"
#include "engine/allowed_tokens.h"
#include "engine/row_result.h"

namespace quire::engine {
namespace {

constexpr int32_t kSamplerSteps = 3;

ops::DeviceSamplerLimits sampler_limits(const StepDeviceParts& parts) {
  return {.vocabulary = parts.vocabulary,
          .rows = parts.limits.wanted_rows(),
          .request_rows = parts.limits.running + 1,
          .penalty_slots = parts.limits.running + 1,
          .text = parts.limits.context,
          .steps = kSamplerSteps};
}

// Drafts of the share that come before a drawn row.
int32_t depth_of(const Batch& batch, const Share& share, int32_t row) {
  int32_t depth = 0;
  for (int32_t i = row - share.drawn.begin; i > 0; i = batch.drawn[share.drawn.begin + i].follows) ++depth;
  return depth;
}

}  // namespace

GpuSteps::GpuSteps(const StepDeviceParts& parts)
    : vocabulary_(parts.vocabulary),
      exec_(parts.exec),
      sampler_(sampler_limits(parts), parts.exec),
      runner_(parts.model, parts.limits, parts.kv_type, parts.table, parts.exec, &sampler_, parts.deterministic,
              parts.head ? &parts.head->features() : nullptr),
      pooled_(static_cast<size_t>(parts.limits.kept_rows()) * parts.model.config().width * sizeof(float),
              Place::pinned),
      width_(parts.model.config().width),
      counted_(parts.limits.running + 1) {
  if (parts.head)
    drafts_.emplace(*parts.head, parts.limits, parts.kv_type, parts.table, runner_, sampler_.tokens_of_step(),
                    parts.deterministic, parts.exec);
}

// --- launch

void GpuSteps::launch(Step& step) {
  const bool is_behind = !launched_.empty(), is_cut = step.batch.is_cut();
  const uint32_t number = runner_.prepare(step.batch);
  newest_ = {.step = &step, .number = number, .wants_logits = false, .is_behind = is_behind};
  or_abandon([&] {
    make_room(number);
    if (!is_cut) tell_sampler(step, number);
    const Runner::Outputs outputs = runner_.compute(step.batch, is_cut ? Runner::Part::forward : Runner::Part::whole);
    copy_pooled(step.batch, outputs.pooled);
  });
}

void GpuSteps::draw(Step& step) {
  or_abandon([&] {
    if (step.batch.is_cut()) {
      tell_sampler(step, newest_.number);
      runner_.sample(step.batch);
    }
    if (drafts_) drafts_->follow(step.batch);
  });
  newest_.wants_logits = sampler_.wants_logits();
  launched_.push_back(newest_);
}

template <class Work>
void GpuSteps::or_abandon(const Work& work) {
  try {
    work();
  } catch (...) {
    runner_.abandon();
    throw;
  }
}

// Steps whose places in rings this one takes, and whose logits it overwrites, are read first.
void GpuSteps::make_room(uint32_t number) {
  const auto is_in_the_way = [&](const Launched& other) {
    return other.wants_logits || !other.step->batch.pooled.empty() || number - other.number >= kSamplerSteps;
  };
  while (std::any_of(launched_.begin(), launched_.end(), is_in_the_way)) read_oldest();
}

void GpuSteps::copy_pooled(const Batch& batch, const Rows<const float>& rows) {
  if (batch.pooled.empty()) return;
  exec_.stream()->copy(pooled_.data(), reinterpret_cast<const std::byte*>(rows.data),
                       static_cast<size_t>(rows.rows * width_) * sizeof(float));
}

// What happens to a row here, its request is told when the step is read.
void GpuSteps::tell_sampler(Step& step, uint32_t number) {
  const Batch& batch = step.batch;
  step.results.drawn.resize(batch.drawn.size());
  step.results.scored.resize(batch.scored.size());
  sampler_.begin(number);
  for (size_t i = 0; i < batch.drawn.size(); ++i) {
    const Share& share = batch.shares[batch.drawn[i].share];
    fill_result(step.results.drawn[i], [&](std::vector<ops::Sampled>&) {
      if (share.sits_out)
        sampler_.skip();
      else
        draw(batch, share, depth_of(batch, share, static_cast<int32_t>(i)));
    });
    if (!step.results.drawn[i].error.empty()) sampler_.skip();
  }
  for (size_t i = 0; i < batch.scored.size(); ++i) {
    const Request& request = *batch.shares[batch.scored[i].share].request;
    fill_result(step.results.scored[i], [](std::vector<ops::Sampled>&) {});
    sampler_.score({.logits = nullptr,
                    .params = nullptr,
                    .position = 0,
                    .top_logprobs = std::max(request.top_logprobs, 0),
                    .logprob_ids = request.logprob_ids},
                   batch.scored[i].token);
  }
}

// One more row of the sampler's, or an exception and none. `ahead`: drafts of the share that come before it. What they
// draw may be nobody's token, and is no row's newest.
void GpuSteps::draw(const Batch& batch, const Share& share, int32_t ahead) {
  const Request& request = *share.request;
  const uint32_t* own = share.mask ? share.mask->bits() : nullptr;
  sampler_.draw({.logits = nullptr,
                 .params = &request.sampling,
                 .position = share.text_end() + ahead,
                 .mask = allowed_tokens(request, share.generated + ahead, own, vocabulary_, mask_scratch_),
                 .top_logprobs = request.top_logprobs,
                 .logprob_ids = request.logprob_ids},
                ahead == 0 ? share.row : RequestRow{0}, penalty_slot(batch, share));
}

// A row of the request table has a slot of its own. Each draw counts its token there, so the text is counted once, and
// again when the request was elsewhere meanwhile; then none of its tokens is in flight.
int32_t GpuSteps::penalty_slot(const Batch& batch, const Share& share) {
  if (!penalises(share.request->sampling)) return ops::kNoPenaltySlot;
  const auto history = std::span(batch.history).subspan(share.history.begin, share.history.count);
  Counted& counted = counted_[share.row.value];
  if (counted.id != share.id || counted.tokens != share.end()) {
    check(history.back() != kFutureToken, "a text of ", share.end(),
          " tokens is to be counted, whose last is not known");
    sampler_.recount(share.row.value, history.first(history.size() - share.generated), history.last(share.generated));
  }
  counted = {share.id, share.end() + 1};
  return share.row.value;
}

// --- finish

void GpuSteps::finish(Step& step) {
  const auto is_unread = [&] {
    return std::any_of(launched_.begin(), launched_.end(), [&](const Launched& each) { return each.step == &step; });
  };
  while (is_unread()) read_oldest();
}

void GpuSteps::read_oldest() {
  const Launched oldest = launched_.front();
  launched_.pop_front();
  sampler_.wait(oldest.number, cuda::patience_for(oldest.step->batch.rows()));
  read_rows(oldest);
  StepResults& results = oldest.step->results;
  results.set_pooled(
      {reinterpret_cast<const float*>(pooled_.data()), std::ssize(oldest.step->batch.pooled), width_, width_});
  results.time = std::chrono::duration<double>(sampler_.seconds(oldest.number));
  results.idle = std::chrono::duration<double>(sampler_.idle_seconds(oldest.number));
  results.overlapped = oldest.is_behind;
}

void GpuSteps::read_rows(const Launched& launched) {
  const Batch& batch = launched.step->batch;
  std::vector<RowResult>& scored = launched.step->results.scored;
  for (const Share& share : batch.shares)
    if (share.draws) read_drawn(launched, share);
  for (size_t i = 0; i < scored.size(); ++i)
    if (scored[i].error.empty())
      read_row(launched.number, static_cast<int32_t>(batch.drawn.size() + i), nullptr, scored[i]);
}

// The walk (draft_tree.h): from a row that gives a draft behind it to that draft's, unless what it gives is a stop id.
void GpuSteps::read_drawn(const Launched& launched, const Share& share) {
  const Batch& batch = launched.step->batch;
  const auto drawn = std::span(launched.step->results.drawn).subspan(share.drawn.begin, share.drawn.count);
  int32_t at = 0, token = -1;  // the row in which the walk is, and what it gave
  for (int32_t i = 0; i < share.drawn.count; ++i) {
    const int32_t row = share.drawn.begin + i;
    const bool counts = i == 0 || (token >= 0 && batch.drawn[row].follows == at &&
                                   token == batch.token_ids[batch.drawn[row].row] && !stops_at(*share.request, token));
    if (!counts) {
      drawn[i].clear();
      continue;
    }
    const bool has_token = drawn[i].error.empty() && read_row(launched.number, row, share.mask.get(), drawn[i]);
    if (!has_token) counted_[share.row.value] = {};
    at = i;
    token = has_token ? drawn[i].tokens.front().token : -1;
  }
}

// mask: that is told of the token; null: none. False: the row has no token.
bool GpuSteps::read_row(uint32_t number, int32_t row, AheadMask* mask, RowResult& result) {
  fill_result(result, [&](std::vector<ops::Sampled>& tokens) {
    ops::Sampled sampled = sampler_.result(number, row);
    if (sampled.token < 0) return;
    if (mask) mask->drew(sampled.token);
    tokens.push_back(std::move(sampled));
  });
  return !result.tokens.empty();
}

}  // namespace quire::engine
