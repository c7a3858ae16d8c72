#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

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

void add_logprobs(const LogitView& view, int32_t top, const LogitScan& scan, DrawScratch& scratch, Sampled& out) {
  const WeightScale scale{.top = likeliest(view).logit, .per_logit = std::numbers::log2e};
  const double log_sum = scale.top + std::log(sum_weights(view, scale, scan, scratch.sums));
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  out.logprob = logprob(view.logits[static_cast<size_t>(out.token)]);
  gather_likeliest(view, top, scratch.candidates, scratch.bounds);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), before);
  for (const Candidate& candidate : scratch.candidates) out.top.emplace_back(candidate.id, logprob(candidate.logit));
}

}  // namespace

Sampler::Sampler(int32_t vocabulary, Exec& exec) : vocabulary_(vocabulary) {
  check(vocabulary > 0, "a sampler for a vocabulary of ", vocabulary);
  for (int thread = 0; thread < exec.threads(); ++thread) {
    scratch_.push_back(std::make_unique<Scratch>());
    scratch_.back()->scan = logit_scan(exec.isa());
  }
}

Sampler::~Sampler() = default;

void Sampler::check_row(const SampleRow& row) const {
  check(row.logits != nullptr && row.params != nullptr, "a row to be sampled needs logits and parameters");
  check(row.position >= 0, "a token cannot be drawn for position ", row.position);
  check(row.top_logprobs >= -1 && row.top_logprobs <= vocabulary_, "top_logprobs must be in [-1, ", vocabulary_,
        "], got ", row.top_logprobs);
  check_sampling(*row.params, vocabulary_);
}

Sampled Sampler::sample_row(const SampleRow& row, Scratch& scratch) const {
  const SamplingParams& params = *row.params;
  const auto vocabulary = static_cast<size_t>(vocabulary_);
  const LogitView raw = view_logits({row.logits, vocabulary}, scratch.scan, scratch.raw_maxima);
  check(!raw.all_are_minus_infinity(), "all logits are -inf");
  LogitView view = raw;
  if (has_adjustments(row)) {
    scratch.adjusted.resize(vocabulary);
    adjust_logits(row, scratch.adjusted, scratch.counts);
    view = view_logits(scratch.adjusted, scratch.scan, scratch.adjusted_maxima);
    check(!view.all_are_minus_infinity(), "bias, penalties and mask leave no token");
  }
  Sampled out;
  out.token = params.temperature == 0
                  ? likeliest(view).id
                  : draw_token(view, params, uniform(params.seed, static_cast<uint64_t>(row.position)), scratch.scan,
                               scratch.draw);
  if (row.top_logprobs >= 0) add_logprobs(raw, row.top_logprobs, scratch.scan, scratch.draw, out);
  return out;
}

void Sampler::sample(std::span<const SampleRow> rows, std::span<Sampled> out, Exec& exec) {
  check(rows.size() == out.size(), "cannot sample ", rows.size(), " rows into ", out.size());
  check(!exec.capturing(), "sampling of ", rows.size(), " rows cannot be captured");
  check(exec.threads() <= std::ssize(scratch_), "a sampler for ", scratch_.size(), " threads cannot serve ",
        exec.threads());
  for (const SampleRow& row : rows) check_row(row);

  // A job must not throw: what a row refuses is kept and thrown after all have ended.
  std::vector<std::string> refusals(rows.size());
  const auto job = [&](int64_t index, int thread) {
    const auto i = static_cast<size_t>(index);
    try {
      out[i] = sample_row(rows[i], *scratch_[static_cast<size_t>(thread)]);
    } catch (const CheckError& error) {
      refusals[i] = error.what();
    }
  };
  exec.parallel(
      std::ssize(rows),
      [](const void* context, int64_t item, int thread) {
        (*static_cast<const decltype(job)*>(context))(item, thread);
      },
      &job);
  for (size_t i = 0; i < rows.size(); ++i) check(refusals[i].empty(), "row ", i, ": ", refusals[i]);
}

}  // namespace quire::ops
