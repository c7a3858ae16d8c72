// What happens to calls over a network, as opposed to what answers say.
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

}  // namespace quire::hub
