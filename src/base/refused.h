// What is wrong with a caller's input, and not with the program or the model's files, as other CheckErrors are: a
// source with wrong syntax, a text or messages that cannot be used, what is not supported or over a limit.
#pragma once
#include "base/check.h"

namespace quire {

class Refused : public CheckError {
 public:
  using CheckError::CheckError;
};

template <class... Parts>
void check_input(bool holds, const Parts&... parts) {
  if (!holds) [[unlikely]]
    throw Refused(cat(parts...));
}

}  // namespace quire
