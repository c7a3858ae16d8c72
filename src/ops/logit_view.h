// A vocabulary's logits after the first pass over them, which found them sound and found the largest of each block.
#pragma once
#include <span>
#include <vector>

#include "ops/logit_scan.h"

namespace quire::ops {

struct LogitView {
  std::span<const float> logits;  // [vocabulary]
  std::span<const float> maxima;  // [logit_blocks(vocabulary)]

  bool all_are_minus_infinity() const;
};

// Throws CheckError when a logit is NaN or +inf. The view lasts as long as maxima stays untouched.
LogitView view_logits(std::span<const float> logits, const LogitScan& scan, std::vector<float>& maxima);

// Fills sums, the weight of each block, and returns their sum, added up in ascending order.
double sum_weights(const LogitView& view, const WeightScale& scale, const LogitScan& scan, std::vector<double>& sums);

}  // namespace quire::ops
