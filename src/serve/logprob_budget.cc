#include "serve/logprob_budget.h"

#include "serve/api_error.h"

namespace quire::serve {

LogprobBudget::Share LogprobBudget::take(int64_t count) {
  if (count == 0) return nullptr;
  if (left_->fetch_sub(count) < count) {
    left_->fetch_add(count);
    throw ApiError(503, "the server is busy: other calls wait for so many logprobs that these do not fit");
  }
  return {left_.get(), [left = left_, count](const void*) { left->fetch_add(count); }};
}

}  // namespace quire::serve
