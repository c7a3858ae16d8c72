#include "http/body_budget.h"

#include "base/check.h"

namespace quire::http {

BodyBudget::Outcome BodyBudget::hold(const std::string& peer, size_t bytes) {
  if (bytes == 0) return Outcome::held;
  const std::lock_guard lock(mutex_);
  const auto found = of_peer_.find(peer);
  const size_t before = found == of_peer_.end() ? 0 : found->second;
  if (bytes > most_of_peer_ - before) return Outcome::peer_has_too_much;
  if (bytes > most_ - held_) return Outcome::all_have_too_much;
  of_peer_[peer] = before + bytes;
  held_ += bytes;
  return Outcome::held;
}

void BodyBudget::release(const std::string& peer, size_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = of_peer_.find(peer);
  check(found != of_peer_.end() && found->second >= bytes, "more of a body is released than is held");
  held_ -= bytes;
  found->second -= bytes;
  if (found->second == 0) of_peer_.erase(found);
}

size_t BodyBudget::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

BodyBudget::Outcome BodyBudget::Share::grow_to(size_t bytes) {
  const Outcome outcome = budget_->hold(peer_, bytes - bytes_);
  if (outcome == Outcome::held) bytes_ = bytes;
  return outcome;
}

void BodyBudget::Share::shrink_to(size_t bytes) {
  if (bytes < bytes_) budget_->release(peer_, std::exchange(bytes_, bytes) - bytes);
}

}  // namespace quire::http
