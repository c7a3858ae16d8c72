#include "serve/caller.h"

#include "base/check.h"

namespace quire::serve {

// The length in front keeps ("a", "bc") and ("ab", "c") apart.
std::string joined_salt(const Caller& caller, const std::string& of_request) {
  if (caller.salt.empty() && of_request.empty()) return "";
  return cat(caller.salt.size(), ":", caller.salt, of_request);
}

}  // namespace quire::serve
