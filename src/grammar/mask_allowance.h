// The processor time that masks may take: that of all texts of one call together.
//
// What a grammar costs cannot be told from its size: masks take some microseconds for grammars of the common kinds and
// could take seconds for hostile ones. So a call has some time at once and earns more with each of its tokens, up to as
// much. When it is used up it stays so, for all texts of the call.
//
// From any thread; work that is under way on another one is charged when it ends.
#pragma once
#include <chrono>
#include <mutex>

namespace quire::grammar {

struct MaskTime {
  std::chrono::microseconds at_once{200'000};
  std::chrono::microseconds per_token{1'000};
};

class MaskAllowance {
 public:
  explicit MaskAllowance(const MaskTime& time) : time_(time), left_(time.at_once) {}

  std::chrono::nanoseconds left() const;  // 0: used up
  void spend(std::chrono::nanoseconds time);
  void use_up();
  void earn_for_a_token();

 private:
  const MaskTime time_;
  mutable std::mutex mutex_;
  std::chrono::nanoseconds left_;
};

}  // namespace quire::grammar
