// When a transfer that broke is tried again: a few times, each wait twice the one before, and from the start of the
// count whenever something came in between.
#pragma once
#include <chrono>
#include <optional>

namespace quire::hub {

class Retry {
 public:
  static constexpr int kMostTries = 5;
  static constexpr std::chrono::milliseconds kFirstWait{200};

  // How long to wait before the next try; none: it is time to give up.
  std::optional<std::chrono::milliseconds> after_failure() {
    if (++failures_ >= kMostTries) return std::nullopt;
    return kFirstWait * (1 << (failures_ - 1));
  }
  void after_progress() { failures_ = 0; }

 private:
  int failures_ = 0;
};

}  // namespace quire::hub
