// From logits to a token, for each row by its own parameters.
//
// Order: logit bias; repetition, then frequency and presence penalties (over the tokens of the row's own text);
// mask; temperature; top-k; top-p; min-p; draw. Temperature 0 takes the largest logit, ties to the lower id, and skips
// all from temperature on.
//
//   weight   a whole number: 2^40 * exp((logit - largest) / temperature), rounded to the nearest
//   top-k    exactly k tokens: among equal logits the lower ids
//   top-p    the fewest of the likeliest tokens (equal ones by id) that together weigh at least ceil(top_p * total),
//            total being what top-k left
//   min-p    tokens that weigh at least min_p * 2^40, that is min_p times as much as the likeliest
//   draw     the survivors in order of id share [0, total) by their weights; the token whose share holds
//            floor(random * total / 2^64), random being the 64 bits of (seed, position)
//
// Sums are of integers and have no order, and sample_weight.h has the arithmetic of a draw to the bit: whoever follows
// it, with any number of threads or on another device, draws the same token. It is a function of the row alone, so
// seeded sampling does not depend on the batch, the schedule or a retraction. Adjusted logits are f32, each operation
// rounded by itself.
//
// Errors   parameters outside their domain throw CheckError that names the parameter (check_sampling). So do logits
//          that are NaN, +inf or all -inf: a broken model is not sampled from; and a mask and penalties that leave no
//          token.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/exec.h"

namespace quire::ops {

struct SamplingParams {
  float temperature = 1;         // >= 0
  int32_t top_k = 0;             // 0 or -1: all
  float top_p = 1;               // (0, 1]
  float min_p = 0;               // [0, 1]
  float repetition_penalty = 1;  // > 0; of prompt and generated tokens: logit / p if positive, else logit * p
  float frequency_penalty = 0;   // [-2, 2]; times the count among generated tokens
  float presence_penalty = 0;    // [-2, 2]; once for each token generated before
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, [-100, 100]
  uint64_t seed = 0;
};
void check_sampling(const SamplingParams& params, int32_t vocabulary);

struct SampleRow {
  const float* logits;  // [vocabulary], not changed
  const SamplingParams* params;
  std::span<const int32_t> prompt = {};     // for the penalties
  std::span<const int32_t> generated = {};  // tokens so far
  int64_t position;                         // of the token to be drawn: prompt + generated so far
  const uint32_t* mask = nullptr;           // [ceil(vocabulary / 32)] bit set: allowed; null: all
  int32_t top_logprobs = -1;  // -1: no logprobs; else log-softmax of the unchanged logits for the drawn token
                              // and that many of the largest
  std::span<const int32_t> logprob_ids = {};  // where there are logprobs: also of these tokens
};
struct Sampled {
  int32_t token = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top = {};     // id, logprob; descending, ties to the lower id
  std::vector<std::pair<int32_t, float>> wanted = {};  // of SampleRow::logprob_ids, in their order
};

namespace ref {
// The token alone, in plain loops: what sampling means. The text holds only tokens of the vocabulary.
int32_t sample(const SampleRow& row, int32_t vocabulary);
}  // namespace ref

class Sampler {  // owns scratch for the vocabulary, of at most 2^23 tokens, one for each thread of exec
 public:
  Sampler(int32_t vocabulary, const Exec& exec);
  ~Sampler();
  // From several threads at once, each under its own number in [0, exec.threads()). Afterwards, also after a refusal,
  // the sampler is as good as before.
  Sampled sample(const SampleRow& row, int thread) const;
  // Nothing is drawn: how likely this token was. Reads the row's logits and which logprobs are wanted.
  Sampled score(const SampleRow& row, int32_t token, int thread) const;

 private:
  struct Scratch;
  void check_row(const SampleRow& row) const;
  Scratch& scratch(int thread) const;

  int32_t vocabulary_;
  std::vector<std::unique_ptr<Scratch>> scratch_;  // [threads]
};

}  // namespace quire::ops
