// A source that its caller has to change: wrong syntax, what is not supported, what is over a limit. Other CheckErrors
// of this room are faults of the program.
#pragma once
#include "base/check.h"

namespace quire::grammar {

class Refused : public CheckError {
 public:
  using CheckError::CheckError;
};

template <class... Parts>
void check_source(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw Refused(cat(parts...));
}

}  // namespace quire::grammar
