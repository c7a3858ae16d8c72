#include "serve/caller.h"

#include "base/check.h"
#include "serve/api_error.h"

namespace quire::serve {

// The length in front keeps ("a", "bc") and ("ab", "c") apart.
std::string joined_salt(const Caller& caller, const std::string& of_request) {
  if (caller.salt.empty() && of_request.empty()) return "";
  return cat(caller.salt.size(), ":", caller.salt, of_request);
}

void check_may_manage(const Caller& caller, std::string_view what, const std::string& param) {
  if (!caller.may_manage)
    throw ApiError(403, cat(what, " concerns all callers, so it needs the key that --admin-api-key sets"), param);
}

}  // namespace quire::serve
