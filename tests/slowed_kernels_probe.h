// Two kernels, one after the other, of which the second reads what the first wrote.
#pragma once
#include "base/exec.h"

namespace quire {

// What the second read: kWritten, or kBefore where it came too early.
inline constexpr int32_t kBefore = -1, kWritten = 7;
int32_t read_after_write(bool waits, Exec& exec);

}  // namespace quire
