#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "ops/adjust_logits.h"
#include "ops/candidates.h"
#include "ops/draw_token.h"
#include "ops/logit_view.h"

namespace quire::ops {

// Of one thread. What only some parameters need grows when they first ask for it.
struct Sampler::Scratch {
  LogitScan scan;
  std::vector<float> raw_maxima;       // [logit_blocks(vocabulary)] of the logits as they came
  std::vector<float> adjusted_maxima;  // of the adjusted ones
  std::vector<float> adjusted;         // [vocabulary]
  std::vector<int32_t> counts;         // adjust_logits' own
  DrawScratch draw;
};

namespace {

void add_logprobs(const LogitView& view, const SampleRow& row, const LogitScan& scan, DrawScratch& scratch,
                  Sampled& out) {
  const WeightScale scale{.top = likeliest(view).logit, .per_logit = std::numbers::log2e};
  const double log_sum = scale.top + std::log(sum_weights(view, scale, scan, scratch.sums));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  out.logprob = logprob(view.logits[static_cast<size_t>(out.token)]);
  gather_likeliest(view, row.top_logprobs, scratch.candidates, scratch.bounds);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), before);
  for (const Candidate& candidate : scratch.candidates) out.top.emplace_back(candidate.id, logprob(candidate.logit));
  for (const int32_t id : row.logprob_ids) out.wanted.emplace_back(id, logprob(view.logits[static_cast<size_t>(id)]));
}

}  // namespace

Sampler::Sampler(int32_t vocabulary, const Exec& exec) : vocabulary_(vocabulary) {
  check(vocabulary > 0, "a sampler for a vocabulary of ", vocabulary);
  for (int thread = 0; thread < exec.threads(); ++thread) {
    scratch_.push_back(std::make_unique<Scratch>());
    scratch_.back()->scan = logit_scan(exec.isa());
  }
}

Sampler::~Sampler() = default;

Sampler::Scratch& Sampler::scratch(int thread) const {
  check(thread >= 0 && thread < std::ssize(scratch_), "thread ", thread, " of a sampler for ", scratch_.size());
  return *scratch_[static_cast<size_t>(thread)];
}

void Sampler::check_row(const SampleRow& row) const {
  check(row.logits != nullptr, "a row to be sampled needs logits");
  check(row.top_logprobs >= -1 && row.top_logprobs <= vocabulary_, "top_logprobs must be in [-1, ", vocabulary_,
        "], got ", row.top_logprobs);
  for (const int32_t id : row.logprob_ids)
    check(id >= 0 && id < vocabulary_, "logprob_ids name token ", id, ", outside the vocabulary of ", vocabulary_);
}

Sampled Sampler::sample(const SampleRow& row, int thread) const {
  check_row(row);
  check(row.params != nullptr, "a row to be sampled needs parameters");
  check(row.position >= 0, "a token cannot be drawn for position ", row.position);
  check_sampling(*row.params, vocabulary_);

  Scratch& own = scratch(thread);
  const SamplingParams& params = *row.params;
  const auto vocabulary = static_cast<size_t>(vocabulary_);
  const LogitView raw = view_logits({row.logits, vocabulary}, own.scan, own.raw_maxima);
  check(!raw.all_are_minus_infinity(), "all logits are -inf");
  LogitView view = raw;
  if (has_adjustments(row)) {
    own.adjusted.resize(vocabulary);
    adjust_logits(row, own.adjusted, own.counts);
    view = view_logits(own.adjusted, own.scan, own.adjusted_maxima);
    check(!view.all_are_minus_infinity(), "bias, penalties and mask leave no token");
  }
  Sampled out;
  out.token =
      params.temperature == 0
          ? likeliest(view).id
          : draw_token(view, params, uniform(params.seed, static_cast<uint64_t>(row.position)), own.scan, own.draw);
  if (row.top_logprobs >= 0) add_logprobs(raw, row, own.scan, own.draw, out);
  return out;
}

Sampled Sampler::score(const SampleRow& row, int32_t token, int thread) const {
  check_row(row);
  check(token >= 0 && token < vocabulary_, "token ", token, " is outside the vocabulary of ", vocabulary_);
  check(row.top_logprobs >= 0, "a row without logprobs cannot be scored");
  Scratch& own = scratch(thread);
  const LogitView raw = view_logits({row.logits, static_cast<size_t>(vocabulary_)}, own.scan, own.raw_maxima);
  check(!raw.all_are_minus_infinity(), "all logits are -inf");
  Sampled out{.token = token};
  add_logprobs(raw, row, own.scan, own.draw, out);
  return out;
}

}  // namespace quire::ops
