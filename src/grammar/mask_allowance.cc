#include "grammar/mask_allowance.h"

#include <algorithm>

namespace quire::grammar {

std::chrono::nanoseconds MaskAllowance::left() const {
  const std::lock_guard lock(mutex_);
  return left_;
}

void MaskAllowance::spend(std::chrono::nanoseconds time) {
  const std::lock_guard lock(mutex_);
  left_ = std::max(left_ - time, std::chrono::nanoseconds(0));
}

void MaskAllowance::use_up() {
  const std::lock_guard lock(mutex_);
  left_ = {};
}

void MaskAllowance::earn_for_a_token() {
  const std::lock_guard lock(mutex_);
  if (left_.count() > 0) left_ = std::min<std::chrono::nanoseconds>(left_ + time_.per_token, time_.at_once);
}

}  // namespace quire::grammar
