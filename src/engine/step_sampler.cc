#include "engine/step_sampler.h"

#include <algorithm>

#include "engine/allowed_tokens.h"
#include "engine/row_result.h"

namespace quire::engine {

StepSampler::StepSampler(int32_t vocabulary, MaskThreads& masks, Exec& exec, std::chrono::microseconds patience)
    : vocabulary_(vocabulary),
      mask_threads_(masks),
      patience_(patience),
      exec_(exec),
      sampler_(vocabulary, exec),
      masks_(exec.threads()) {}

void StepSampler::run(const Batch& batch, Rows<const float> logits, StepResults& results) {
  results.drawn.resize(batch.drawn.size());
  results.scored.resize(batch.scored.size());
  begin_walks(batch);
  for (RowResult& result : results.drawn) result.clear();
  draw_rows(batch, logits, results, std::ssize(batch.scored));
  const Deadline deadline = std::chrono::steady_clock::now() + patience_;
  while (go_on(batch, results, deadline)) draw_rows(batch, logits, results, 0);
}

void StepSampler::begin_walks(const Batch& batch) {
  walks_.clear();
  for (const Share& share : batch.shares)
    if (share.draws && !share.sits_out) walks_.push_back({.share = &share, .accepted = 0, .row = 0});
  history_.assign(batch.history.begin(), batch.history.end());
}

// The row that each walk is in, and so many that are scored.
void StepSampler::draw_rows(const Batch& batch, Rows<const float> logits, StepResults& results, int64_t scored) {
  const auto walks = std::ssize(walks_);
  exec_.parallel(walks + scored, [&](int64_t i, int thread) {
    if (i >= walks) {
      const int64_t index = i - walks;
      const WantedRow& row = batch.scored[index];
      return fill_result(results.scored[index], [&](std::vector<ops::Sampled>& tokens) {
        const float* own = logits.row(std::ssize(batch.drawn) + index);
        tokens.push_back(score(batch.shares[row.share], row.token, own, thread));
      });
    }
    const Walk& walk = walks_[i];
    const int32_t index = walk.share->drawn.begin + walk.row;
    fill_result(results.drawn[index],
                [&](std::vector<ops::Sampled>& tokens) { tokens.push_back(draw(walk, logits.row(index), thread)); });
  });
}

// Leaves the walks of which a draft came true, each in the row of that draft, with masks that are ready. False: none is
// left.
bool StepSampler::go_on(const Batch& batch, const StepResults& results, Deadline deadline) {
  for (Walk& walk : walks_) {
    walk.row = next_row(batch, walk, results);
    if (walk.row < 0) continue;
    const Share& share = *walk.share;
    if (share.history.count > 0)
      history_[share.history.begin + share.history.count - share.drafts + walk.accepted] =
          batch.token_ids[batch.drawn[share.drawn.begin + walk.row].row];
    ++walk.accepted;
  }
  std::erase_if(walks_, [](const Walk& walk) { return walk.row < 0; });
  if (walks_.empty()) return false;
  for (const Walk& walk : walks_)
    if (walk.share->mask) mask_threads_.begin(walk.share->mask);
  const auto is_ready = [](const Walk& walk) { return !walk.share->mask || walk.share->mask->ready(); };
  const auto left = std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero());
  mask_threads_.wait([&] { return std::all_of(walks_.begin(), walks_.end(), is_ready); },
                     std::chrono::duration_cast<std::chrono::microseconds>(left));
  std::erase_if(walks_, [&](const Walk& walk) { return !is_ready(walk); });
  return !walks_.empty();
}

// That of the draft which the walk's draw gave; -1: none.
int32_t StepSampler::next_row(const Batch& batch, const Walk& walk, const StepResults& results) {
  const Share& share = *walk.share;
  const std::vector<ops::Sampled>& drawn = results.drawn[share.drawn.begin + walk.row].tokens;
  if (drawn.empty() || stops_at(*share.request, drawn.front().token)) return -1;
  for (int32_t row = walk.row + 1; row < share.drawn.count; ++row) {
    const WantedRow& draft = batch.drawn[share.drawn.begin + row];
    if (draft.follows == walk.row && batch.token_ids[draft.row] == drawn.front().token) return row;
  }
  return -1;
}

ops::Sampled StepSampler::draw(const Walk& walk, const float* logits, int thread) {
  const Share& share = *walk.share;
  const Request& request = *share.request;
  const int32_t generated = share.generated + walk.accepted;
  const uint32_t* own = share.mask ? share.mask->bits() : nullptr;
  const int32_t ahead = share.drafts - walk.accepted;  // drafts that are not in the text
  const auto history = std::span(history_).subspan(share.history.begin, std::max(0, share.history.count - ahead));
  const size_t of_them = history.empty() ? 0 : generated;
  ops::Sampled sampled = sampler_.sample({.logits = logits,
                                          .params = &request.sampling,
                                          .prompt = history.first(history.size() - of_them),
                                          .generated = history.last(of_them),
                                          .position = share.text_end() + walk.accepted,
                                          .mask = allowed_tokens(request, generated, own, vocabulary_, masks_[thread]),
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
