// The fast sampler: one pass finds the largest logit of every block, and what follows reads only blocks that matter.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/check.h"
#include "ops/sample.h"
#include "ops/sample_weight.h"

namespace quire::ops {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// --- bias, penalties and mask; penalties touch the tokens that occur in the row's text and no others

bool penalises_repetition(const SamplingParams& params) { return params.repetition_penalty != 1; }
bool penalises_frequency(const SamplingParams& params) {
  return params.frequency_penalty != 0 || params.presence_penalty != 0;
}

void check_tokens(const char* text, std::span<const int32_t> tokens, size_t vocabulary) {
  for (const int32_t token : tokens)
    check(token >= 0 && static_cast<size_t>(token) < vocabulary, "the ", text, " holds token ", token,
          ", outside the vocabulary of ", vocabulary);
}

// A tiny penalty must not make an infinity out of a number.
float penalised(float logit, float penalty) {
  return logit > 0 ? std::min(logit / penalty, std::numeric_limits<float>::max()) : logit * penalty;
}

void penalise_repetition(const SampleRow& row, std::span<float> logits, std::vector<int32_t>& counts) {
  for (const auto& text : {row.prompt, row.generated})
    for (const int32_t token : text)
      if (counts[token]++ == 0) logits[token] = penalised(logits[token], row.params->repetition_penalty);
  for (const auto& text : {row.prompt, row.generated})
    for (const int32_t token : text) counts[token] = 0;
}

void penalise_frequency(const SampleRow& row, std::span<float> logits, std::vector<int32_t>& counts) {
  for (const int32_t token : row.generated) ++counts[token];
  for (const int32_t token : row.generated) {
    if (counts[token] == 0) continue;  // it occurred before and is done
    logits[token] -= row.params->frequency_penalty * static_cast<float>(counts[token]) + row.params->presence_penalty;
    counts[token] = 0;
  }
}

// Bit by bit but without a branch, which half of a mixed word would mispredict: compilers make vectors of the loop.
void apply_word(uint32_t allowed, float* logits) {
  constexpr size_t kBits = 32;
  constexpr auto kForbiddenBits = std::bit_cast<uint32_t>(kMinusInfinity);
  static constexpr auto kBit = [] {
    std::array<uint32_t, kBits> bit{};
    for (size_t i = 0; i < kBits; ++i) bit[i] = uint32_t{1} << i;
    return bit;
  }();
  uint32_t bits[kBits];
  std::memcpy(bits, logits, sizeof(bits));
  for (size_t i = 0; i < kBits; ++i) {
    const uint32_t hidden = (allowed & kBit[i]) == 0 ? ~uint32_t{0} : 0;
    bits[i] = (bits[i] & ~hidden) | (kForbiddenBits & hidden);
  }
  std::memcpy(logits, bits, sizeof(bits));
}

void apply_mask(const uint32_t* mask, std::span<float> logits) {
  const size_t whole = logits.size() / 32;
  for (size_t word = 0; word < whole; ++word)
    if (mask[word] != ~uint32_t{0}) apply_word(mask[word], logits.data() + word * 32);
  for (size_t i = whole * 32; i < logits.size(); ++i)
    if (!(mask[whole] >> (i % 32) & 1)) logits[i] = kMinusInfinity;
}

// Whether adjusting would change anything.
bool has_adjustments(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  return !params.logit_bias.empty() || penalises_repetition(params) || penalises_frequency(params) || row.mask;
}

// adjusted [vocabulary] = the row's logits, adjusted. counts is scratch: empty or [vocabulary] zeros, also afterwards.
// Throws CheckError for a token of the text outside the vocabulary.
void adjust_logits(const SampleRow& row, std::span<float> adjusted, std::vector<int32_t>& counts) {
  const SamplingParams& params = *row.params;
  std::copy_n(row.logits, adjusted.size(), adjusted.begin());
  for (const auto& [token, bias] : params.logit_bias) adjusted[token] += bias;
  if (penalises_repetition(params) || penalises_frequency(params)) {
    check_tokens("prompt", row.prompt, adjusted.size());
    check_tokens("generated text", row.generated, adjusted.size());
    counts.resize(adjusted.size());
  }
  if (penalises_repetition(params)) penalise_repetition(row, adjusted, counts);
  if (penalises_frequency(params)) penalise_frequency(row, adjusted, counts);
  if (row.mask) apply_mask(row.mask, adjusted);
}

// --- tokens by likelihood; a block of logits whose largest is too small is skipped

struct LogitView {
  std::span<const float> logits;  // [vocabulary] none of them NaN or +inf
  std::span<const float> maxima;  // [logit_blocks(vocabulary)]

  bool all_are_minus_infinity() const {
    return std::all_of(maxima.begin(), maxima.end(), [](float most) { return std::isinf(most); });
  }
};

// The view lasts as long as maxima stays untouched.
LogitView view_logits(std::span<const float> logits, const LogitScan& scan, std::vector<float>& maxima) {
  const auto count = static_cast<int32_t>(logits.size());
  maxima.resize(static_cast<size_t>(logit_blocks(count)));
  check(scan.maxima(logits.data(), count, maxima.data()), "the logits hold NaN or infinity");
  return {logits, maxima};
}

struct Candidate {
  float logit;
  int32_t id;
};
// The order of likelihood: larger logits first, equal ones by id.
bool before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

std::span<const float> block_of(const LogitView& view, size_t block) {
  const size_t first = block * kLogitBlock;
  return view.logits.subspan(first, std::min<size_t>(kLogitBlock, view.logits.size() - first));
}

// A logit that at least `count` logits reach: the count-th largest of the blocks' largest.
float reached_by(const LogitView& view, int32_t count, std::vector<float>& bounds) {
  if (count > std::ssize(view.maxima)) return kMinusInfinity;
  bounds.assign(view.maxima.begin(), view.maxima.end());
  const auto nth = bounds.begin() + count - 1;
  std::nth_element(bounds.begin(), nth, bounds.end(), std::greater<>());
  return *nth;
}

// The first in the order of likelihood.
Candidate likeliest(const LogitView& view) {
  const auto most = std::max_element(view.maxima.begin(), view.maxima.end());  // the first of equal ones
  const auto block = static_cast<size_t>(most - view.maxima.begin());
  const auto logits = block_of(view, block);
  const auto found = std::find(logits.begin(), logits.end(), *most);
  return {*most, static_cast<int32_t>(block * kLogitBlock + static_cast<size_t>(found - logits.begin()))};
}

// All with a logit of at least `least`, except those at -inf, by ascending id.
void gather(const LogitView& view, float least, std::vector<Candidate>& out) {
  size_t count = 0;
  for (size_t block = 0; block < view.maxima.size(); ++block) {
    if (view.maxima[block] < least) continue;
    auto id = static_cast<int32_t>(block * kLogitBlock);
    out.resize(count + kLogitBlock);
    for (const float logit : block_of(view, block)) {
      out[count] = {logit, id++};
      count += logit >= least && logit > kMinusInfinity;  // no branch: which are kept is hard to predict
    }
  }
  out.resize(count);
}

// The first `count` in the order of likelihood, fewer when fewer are above -inf; the last of them lies last, the others
// in any order. bounds is scratch.
void gather_likeliest(const LogitView& view, int32_t count, std::vector<Candidate>& out, std::vector<float>& bounds) {
  out.clear();
  if (count == 0) return;
  gather(view, reached_by(view, count, bounds), out);
  if (static_cast<int32_t>(out.size()) < count) count = static_cast<int32_t>(out.size());
  std::nth_element(out.begin(), out.begin() + count - 1, out.end(), before);
  out.resize(static_cast<size_t>(count));
}

// --- temperature, top-k, top-p, min-p and the draw

struct Survivor {
  int32_t id;
  uint64_t weight;
};

struct DrawScratch {
  std::vector<uint64_t> fixed_sums;  // [logit_blocks(vocabulary)]
  std::vector<double> sums;          // [logit_blocks(vocabulary)]
  std::vector<Candidate> candidates;
  std::vector<float> bounds;
  std::vector<Survivor> survivors;
};

// Everything that stays is at or before the cut in the order of likelihood.
constexpr Candidate kNoCut{kMinusInfinity, std::numeric_limits<int32_t>::max()};

// A logit that every token of at least this weight reaches: one unit less is further away than all rounding goes.
float logit_of_weight(uint64_t weight, const WeightScale& scale) {
  constexpr double kLowest = std::numeric_limits<float>::lowest();
  const double power = std::log2(static_cast<double>(weight - 1) / static_cast<double>(kWeightOne));
  const double logit = std::max(kLowest, scale.top + power / scale.per_logit);
  return std::nextafter(static_cast<float>(logit), kMinusInfinity);
}

uint64_t total_weight(std::span<const Candidate> candidates, const WeightScale& scale) {
  uint64_t total = 0;
  for (const Candidate& candidate : candidates) total += fixed_weight(candidate.logit, scale);
  return total;
}

// Fills fixed_sums, the weight of each block, and returns their sum.
uint64_t total_weight(const LogitView& view, const WeightScale& scale, const LogitScan& scan, DrawScratch& scratch) {
  scratch.fixed_sums.resize(view.maxima.size());
  scan.fixed_sums(view.logits.data(), static_cast<int32_t>(view.logits.size()), view.maxima.data(), scale,
                  scratch.fixed_sums.data());
  return std::accumulate(scratch.fixed_sums.begin(), scratch.fixed_sums.end(), uint64_t{0});
}

Candidate top_k_cut(const LogitView& view, int32_t k, DrawScratch& scratch) {
  gather_likeliest(view, k, scratch.candidates, scratch.bounds);
  return scratch.candidates.back();
}

// The candidate at which the likeliest first reach the weight. Halves what is left, by likelihood, until so little is
// left that sorting it is nothing.
Candidate cut_at_weight(std::span<Candidate> rest, uint64_t wanted, const WeightScale& scale) {
  constexpr size_t kFew = 64;
  while (rest.size() > kFew) {
    const auto front = rest.first(rest.size() / 2);
    std::nth_element(front.begin(), front.end(), rest.end(), before);
    const uint64_t weight = total_weight(front, scale);
    if (weight < wanted) {
      wanted -= weight;
      rest = rest.subspan(front.size());
    } else {
      rest = front;
    }
  }
  std::sort(rest.begin(), rest.end(), before);
  uint64_t reached = 0;
  size_t last = 0;
  while ((reached += fixed_weight(rest[last].logit, scale)) < wanted) ++last;
  return rest[last];
}

// Candidates that together reach the wanted part of the total: all from a weight on, which sinks until they suffice.
void gather_weight(const LogitView& view, uint64_t wanted, uint64_t total, const WeightScale& scale,
                   std::vector<Candidate>& out) {
  // Even all together, tokens below this weight do not make up the part that may be missing.
  const uint64_t needed = (total - wanted) / view.logits.size() + 1;
  for (uint64_t least = kWeightOne / 64;; least /= 64) {
    gather(view, logit_of_weight(std::max(least, needed), scale), out);
    if (least <= needed || total_weight(out, scale) >= wanted) return;
  }
}

Candidate top_p_cut(const LogitView& view, float top_p, const Candidate& cut, const WeightScale& scale,
                    const LogitScan& scan, DrawScratch& scratch) {
  if (cut.id == kNoCut.id) {
    const uint64_t total = total_weight(view, scale, scan, scratch);
    const uint64_t wanted = top_p_weight(top_p, total);
    gather_weight(view, wanted, total, scale, scratch.candidates);
    return cut_at_weight(scratch.candidates, wanted, scale);
  }
  // Top-k's cut has just been found, and its candidates are still there.
  return cut_at_weight(scratch.candidates, top_p_weight(top_p, total_weight(scratch.candidates, scale)), scale);
}

int32_t draw_from_all(const LogitView& view, uint64_t random, const WeightScale& scale, const LogitScan& scan,
                      DrawScratch& scratch) {
  uint64_t left = draw_threshold(random, total_weight(view, scale, scan, scratch));
  // Whole blocks are passed by their sums, so the weights of one block only are computed twice.
  size_t block = 0;
  for (; scratch.fixed_sums[block] <= left; ++block) left -= scratch.fixed_sums[block];
  size_t id = block * kLogitBlock;
  for (uint64_t weight; (weight = fixed_weight(view.logits[id], scale)) <= left; ++id) left -= weight;
  return static_cast<int32_t>(id);
}

// Among all down to the cut and to the least weight.
int32_t draw_from_part(const LogitView& view, uint64_t random, const Candidate& cut, uint64_t least_weight,
                       const WeightScale& scale, DrawScratch& scratch) {
  const float least = least_weight > 0 ? logit_of_weight(least_weight, scale) : cut.logit;
  gather(view, std::max(cut.logit, least), scratch.candidates);
  scratch.survivors.clear();
  uint64_t total = 0;
  for (const Candidate& candidate : scratch.candidates) {
    if (before(cut, candidate)) continue;
    const uint64_t weight = fixed_weight(candidate.logit, scale);
    if (weight < least_weight) continue;
    scratch.survivors.push_back({candidate.id, weight});
    total += weight;
  }
  uint64_t left = draw_threshold(random, total);
  auto survivor = scratch.survivors.begin();
  for (; survivor->weight <= left; ++survivor) left -= survivor->weight;
  return survivor->id;
}

// The temperature is above 0 and some logit above -inf.
int32_t draw_token(const LogitView& view, const SamplingParams& params, uint64_t random, const LogitScan& scan,
                   DrawScratch& scratch) {
  const WeightScale scale = weight_scale(likeliest(view).logit, params.temperature);
  const bool has_top_k = params.top_k > 0 && params.top_k < std::ssize(view.logits);
  if (!has_top_k && params.top_p == 1 && params.min_p == 0) return draw_from_all(view, random, scale, scan, scratch);
  Candidate cut = has_top_k ? top_k_cut(view, params.top_k, scratch) : kNoCut;
  if (params.top_p < 1) cut = top_p_cut(view, params.top_p, cut, scale, scan, scratch);
  return draw_from_part(view, random, cut, min_p_weight(params.min_p), scale, scratch);
}

// Log-softmax of the unchanged logits.
void add_logprobs(const LogitView& view, const SampleRow& row, const LogitScan& scan, DrawScratch& scratch,
                  Sampled& out) {
  const WeightScale scale{.top = likeliest(view).logit, .per_logit = std::numbers::log2e};
  scratch.sums.resize(view.maxima.size());
  scan.sums(view.logits.data(), static_cast<int32_t>(view.logits.size()), scale, scratch.sums.data());
  const double sum = std::accumulate(scratch.sums.begin(), scratch.sums.end(), 0.0);
  const double log_sum = scale.top + std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  out.logprob = logprob(view.logits[static_cast<size_t>(out.token)]);
  gather_likeliest(view, row.top_logprobs, scratch.candidates, scratch.bounds);
  std::sort(scratch.candidates.begin(), scratch.candidates.end(), before);
  for (const Candidate& candidate : scratch.candidates) out.top.emplace_back(candidate.id, logprob(candidate.logit));
  for (const int32_t id : row.logprob_ids) out.wanted.emplace_back(id, logprob(view.logits[static_cast<size_t>(id)]));
}

}  // namespace

LogitScan logit_scan([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512) return avx512::logit_scan();
  if (isa >= Isa::avx2) return avx2::logit_scan();
#endif
  return plain::logit_scan();
}

// Of one thread. What only some parameters need grows when they first ask for it.
struct Sampler::Scratch {
  LogitScan scan;
  std::vector<float> raw_maxima;       // [logit_blocks(vocabulary)] of the logits as they came
  std::vector<float> adjusted_maxima;  // of the adjusted ones
  std::vector<float> adjusted;         // [vocabulary]
  std::vector<int32_t> counts;         // adjust_logits' own
  DrawScratch draw;
};

Sampler::Sampler(int32_t vocabulary, const Exec& exec) : vocabulary_(vocabulary) {
  check(vocabulary > 0 && vocabulary <= kMostWeights, "a sampler for a vocabulary of ", vocabulary);
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
          : draw_token(view, params, random_bits(params.seed, static_cast<uint64_t>(row.position)), own.scan, own.draw);
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
