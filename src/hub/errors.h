// What can go wrong with a model's name, beside what a CheckError says.
#pragma once
#include <string>

#include "base/check.h"

namespace quire::hub {

// No answer, or only a part of one: the next try may do better.
class NetworkError : public CheckError {
 public:
  NetworkError(const std::string& text, bool connected) : CheckError(text), was_connected(connected) {}
  const bool was_connected;  // false: the other side was not reached at all
};

// A name that leads nowhere, as far as the hub or the cache can tell: it may have been meant as a path.
class NoSuchModel : public CheckError {
 public:
  using CheckError::CheckError;
};

}  // namespace quire::hub
