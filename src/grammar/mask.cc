#include "grammar/mask.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire::grammar {
namespace {

DLTensor tensor_of(std::vector<uint32_t>& bits, int64_t& length) {
  length = std::ssize(bits);
  DLTensor tensor{};
  tensor.data = bits.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &length;
  return tensor;
}

[[noreturn]] void refuse_too_slow() {
  throw engine::ConstraintRefused(
      "the constraint on the output takes too long to follow: a regular expression or grammar with fewer ways to match "
      "the same text would do");
}

}  // namespace

Mask::Mask(std::shared_ptr<const Compiled> compiled, int32_t vocabulary, std::span<const int32_t> end_ids,
           std::shared_ptr<TimeAllowance> allowance)
    : compiled_(std::move(compiled)),
      end_ids_(end_ids.begin(), end_ids.end()),
      allowance_(std::move(allowance)),
      vocabulary_(vocabulary),
      matcher_(compiled_->grammar),
      bits_((static_cast<size_t>(vocabulary) + 31) / 32) {}

template <class Work>
auto Mask::within_allowance(const Work& work) {
  try {
    const TimeGuard guard(*allowance_);
    return work();
  } catch (const TimeOver&) {  // the matcher cannot be asked again, and the allowance stays used up
    refuse_too_slow();
  } catch (const std::exception& error) {
    throw CheckError(cat("the constraint on the output failed: ", error.what()));
  }
}

const uint32_t* Mask::next() {
  if (allowance_->used_up()) refuse_too_slow();
  if (!is_filled_) fill();
  is_filled_ = true;
  return all_allowed_ ? nullptr : bits_.data();
}

void Mask::fill() {
  if (at_end_) return allow_only_end_ids();
  int64_t length = 0;
  DLTensor tensor = tensor_of(bits_, length);
  all_allowed_ = !within_allowance([&] { return matcher_.FillNextTokenBitmask(&tensor); });
  if (const int32_t used = vocabulary_ % 32; used != 0) bits_.back() &= (1U << used) - 1;
  if (!has_any()) allow_only_end_ids();
}

void Mask::accept(int32_t token) {
  const uint32_t* bits = next();
  const bool is_known = token >= 0 && token < vocabulary_;
  const bool is_allowed = is_known && (!bits || (bits[token / 32] >> (token % 32) & 1));
  check(is_allowed, "token ", token, " is not allowed by the constraint on the output");
  const bool is_end = std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
  if (!at_end_ && !is_end) {
    const bool accepted = within_allowance([&] { return matcher_.AcceptToken(token); });
    check(accepted, "token ", token, " was allowed and is not accepted");
  }
  at_end_ = at_end_ || is_end;
  is_filled_ = false;
  allowance_->earn_for_a_token();
}

// Where the vocabulary has no token for what must come, the text ends as it is.
void Mask::allow_only_end_ids() {
  at_end_ = true;
  all_allowed_ = false;
  std::fill(bits_.begin(), bits_.end(), 0);
  for (const int32_t id : end_ids_) bits_[id / 32] |= 1U << (id % 32);
}

bool Mask::has_any() const {
  return std::any_of(bits_.begin(), bits_.end(), [](uint32_t word) { return word != 0; });
}

}  // namespace quire::grammar
