// A name that leads nowhere, as far as the hub or the cache can tell: it may have been meant as a path.
#pragma once
#include "base/check.h"

namespace quire::hub {

class NoSuchModel : public CheckError {
 public:
  using CheckError::CheckError;
};

}  // namespace quire::hub
