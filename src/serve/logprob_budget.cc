#include "serve/logprob_budget.h"

#include "serve/api_error.h"

namespace quire::serve {

LogprobBudget::Share LogprobBudget::take(int64_t count) {
  if (count == 0) return nullptr;
  // What does not fit is never taken, not even for a moment in which others would miss it.
  int64_t left = left_->load();
  do {
    if (left < count)
      throw ApiError(503, "the server is busy: other calls wait for so many logprobs that these do not fit");
  } while (!left_->compare_exchange_weak(left, left - count));
  return {left_.get(), [left = left_, count](const void*) { left->fetch_add(count); }};
}

}  // namespace quire::serve
