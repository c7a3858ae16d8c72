#include "engine/step_sampler.h"

#include <algorithm>
#include <exception>

#include "engine/allowed_tokens.h"

namespace quire::engine {

StepSampler::StepSampler(int32_t vocabulary, Exec& exec)
    : vocabulary_(vocabulary), exec_(exec), sampler_(vocabulary, exec), masks_(exec.threads()) {}

StepResults StepSampler::run(const Batch& batch, Rows<const float> logits) {
  list_rows(batch);
  results_.assign(rows_.size(), {});
  exec_.parallel(std::ssize(rows_),
                 [&](int64_t i, int thread) { results_[i] = result_of(rows_[i], logits.row(i), thread); });
  const std::span all(results_);
  return {.drawn = all.first(batch.draws), .scored = all.subspan(batch.draws)};
}

RowResult StepSampler::result_of(const Row& row, const float* logits, int thread) {
  const AheadMask* const mask = row.scored < 0 ? row.sequence->mask.get() : nullptr;
  if (mask && !mask->ready()) return {.late = true};
  try {
    return {.sampled = compute(row, logits, thread)};
  } catch (const ConstraintRefused& refused) {
    return {.error = refused.what(), .refused = true};
  } catch (const std::exception& error) {
    return {.error = error.what()};
  } catch (...) {
    return {.error = "the mask of allowed tokens threw"};
  }
}

void StepSampler::list_rows(const Batch& batch) {
  rows_.clear();
  for (const Share& share : batch.shares)
    if (share.draws) rows_.push_back({share.sequence, -1});
  for (const Share& share : batch.shares)
    for (int32_t i = 0; i < share.scored(); ++i)
      rows_.push_back({share.sequence, share.sequence->tokens[share.kept.begin + i + 1]});
}

ops::Sampled StepSampler::compute(const Row& row, const float* logits, int thread) {
  if (row.scored < 0) return draw(*row.sequence, logits, thread);
  const Request& request = row.sequence->request;
  return sampler_.score({.logits = logits,
                         .params = nullptr,
                         .position = 0,
                         .top_logprobs = std::max(request.top_logprobs, 0),
                         .logprob_ids = request.logprob_ids},
                        row.scored, thread);
}

ops::Sampled StepSampler::draw(Sequence& sequence, const float* logits, int thread) {
  const Request& request = sequence.request;
  const uint32_t* own = sequence.mask ? sequence.mask->bits() : nullptr;
  ops::Sampled sampled = sampler_.sample({.logits = logits,
                                          .params = &request.sampling,
                                          .prompt = sequence.prompt(),
                                          .generated = sequence.continuation(),
                                          .position = sequence.length(),
                                          .mask = allowed_tokens(sequence, own, vocabulary_, masks_[thread]),
                                          .top_logprobs = request.top_logprobs,
                                          .logprob_ids = request.logprob_ids},
                                         thread);
  if (sequence.mask) sequence.mask->drew(sampled.token);
  return sampled;
}

}  // namespace quire::engine
