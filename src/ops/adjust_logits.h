// What a row's own parameters do to its logits before any is drawn: bias, penalties, mask.
//
// Penalties touch the tokens that occur in the row's text and no others.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ops/sample.h"

namespace quire::ops {

// Whether adjusting would change anything.
bool has_adjustments(const SampleRow& row);

// adjusted [vocabulary] = the row's logits, adjusted. counts is scratch: empty or [vocabulary] zeros, also afterwards.
// Throws CheckError for a token of the text outside the vocabulary.
void adjust_logits(const SampleRow& row, std::span<float> adjusted, std::vector<int32_t>& counts);

}  // namespace quire::ops
