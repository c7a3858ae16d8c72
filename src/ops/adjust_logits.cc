#include "ops/adjust_logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::ops {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

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
  constexpr auto kForbiddenBits = std::bit_cast<uint32_t>(kForbidden);
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
    if (!(mask[whole] >> (i % 32) & 1)) logits[i] = kForbidden;
}

}  // namespace

bool has_adjustments(const SampleRow& row) {
  const SamplingParams& params = *row.params;
  return !params.logit_bias.empty() || penalises_repetition(params) || penalises_frequency(params) || row.mask;
}

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

}  // namespace quire::ops
