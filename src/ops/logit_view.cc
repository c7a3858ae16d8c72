#include "ops/logit_view.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire::ops {

bool LogitView::all_are_minus_infinity() const {
  return std::all_of(maxima.begin(), maxima.end(), [](float most) { return std::isinf(most); });
}

LogitView view_logits(std::span<const float> logits, const LogitScan& scan, std::vector<float>& maxima) {
  const auto count = static_cast<int32_t>(logits.size());
  maxima.resize(static_cast<size_t>(logit_blocks(count)));
  check(scan.maxima(logits.data(), count, maxima.data()), "the logits hold NaN or infinity");
  return {logits, maxima};
}

double sum_weights(const LogitView& view, const WeightScale& scale, const LogitScan& scan, std::vector<double>& sums) {
  sums.resize(view.maxima.size());
  scan.sums(view.logits.data(), static_cast<int32_t>(view.logits.size()), scale, sums.data());
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace quire::ops
