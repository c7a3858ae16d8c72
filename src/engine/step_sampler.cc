#include "engine/step_sampler.h"

#include <algorithm>

#include "engine/allowed_tokens.h"
#include "engine/row_result.h"

namespace quire::engine {

StepSampler::StepSampler(int32_t vocabulary, Exec& exec)
    : vocabulary_(vocabulary), exec_(exec), sampler_(vocabulary, exec), masks_(exec.threads()) {}

void StepSampler::run(const Batch& batch, Rows<const float> logits, StepResults& results) {
  const auto draws = std::ssize(batch.drawn);
  results.drawn.resize(batch.drawn.size());
  results.scored.resize(batch.scored.size());
  exec_.parallel(batch.with_logits(), [&](int64_t i, int thread) {
    const WantedRow& row = i < draws ? batch.drawn[i] : batch.scored[i - draws];
    const Share& share = batch.shares[row.share];
    fill_result(i < draws ? results.drawn[i] : results.scored[i - draws], [&](std::vector<ops::Sampled>& tokens) {
      if (i >= draws)
        tokens.push_back(score(share, row.token, logits.row(i), thread));
      else if (!share.mask || share.mask->ready())
        tokens.push_back(draw(batch, share, logits.row(i), thread));
    });
  });
}

ops::Sampled StepSampler::draw(const Batch& batch, const Share& share, const float* logits, int thread) {
  const Request& request = *share.request;
  const uint32_t* own = share.mask ? share.mask->bits() : nullptr;
  const auto history = std::span(batch.history).subspan(share.history.begin, share.history.count);
  const size_t generated = history.empty() ? 0 : share.generated;
  ops::Sampled sampled =
      sampler_.sample({.logits = logits,
                       .params = &request.sampling,
                       .prompt = history.first(history.size() - generated),
                       .generated = history.last(generated),
                       .position = share.end(),
                       .mask = allowed_tokens(request, share.generated, own, vocabulary_, masks_[thread]),
                       .top_logprobs = request.top_logprobs,
                       .logprob_ids = request.logprob_ids},
                      thread);
  if (share.mask) share.mask->drew(sampled.token);
  return sampled;
}

ops::Sampled StepSampler::score(const Share& share, int32_t token, const float* logits, int thread) {
  return sampler_.score({.logits = logits,
                         .params = nullptr,
                         .position = 0,
                         .top_logprobs = std::max(share.request->top_logprobs, 0),
                         .logprob_ids = share.request->logprob_ids},
                        token, thread);
}

}  // namespace quire::engine
