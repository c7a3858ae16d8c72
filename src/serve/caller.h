// Who calls, as the routes found out from the key that was presented.
#pragma once
#include <string>

namespace quire::serve {

struct Caller {
  std::string salt = {};  // set by the operator for the caller's key: prefixes are shared only within one salt. What a
                          // request asks for itself (cache_salt, extra_key) separates further and never joins others
  std::string name = {};  // of the key, for logs and turns: never the key itself; "" when none was asked for
};
std::string joined_salt(const Caller& caller, const std::string& of_request);

}  // namespace quire::serve
