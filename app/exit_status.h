// How the program ends: what is said last, and its exit status.
//
//   1   something failed: a GPU for instance
//   2   what was asked for cannot be: a model, a device, memory; or a command line that cannot be understood
#pragma once
#include <exception>
#include <functional>

namespace quire {

inline constexpr int kFailed = 1;

// What the command returns; where it throws, one line on standard error and the status that goes with it.
int exit_status(const std::function<int()>& command);

// The same for a failure of a device behind which nothing may be waited for: says it and ends the process here and now,
// with all that was written, but without giving back anything. A kernel that hangs would hold up whoever frees memory.
[[noreturn]] void end_at_once(const std::exception& error);

}  // namespace quire
