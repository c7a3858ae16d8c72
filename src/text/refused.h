// What a text or the messages of a caller cannot be used for, and why: a template that raises an exception about them,
// a limit that they pass. Other CheckErrors of this room are about the model's files, or faults of the program.
#pragma once
#include "base/check.h"

namespace quire::text {

class Refused : public CheckError {
 public:
  using CheckError::CheckError;
};

}  // namespace quire::text
