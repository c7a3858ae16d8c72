// How many logprobs all calls that are being answered may come to together: they are kept until an answer is complete,
// some 100 bytes each. Calls take their share before they begin, for all that they can come to. From any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace quire::serve {

class LogprobBudget {
 public:
  explicit LogprobBudget(int64_t most) : most_(most), left_(std::make_shared<std::atomic<int64_t>>(most)) {}

  int64_t most() const { return most_; }

  // Given back when its last holder lets go, also after the budget is gone. Throws ApiError 503 while others have too
  // much.
  using Share = std::shared_ptr<const void>;
  Share take(int64_t count);

 private:
  const int64_t most_;
  const std::shared_ptr<std::atomic<int64_t>> left_;
};

}  // namespace quire::serve
