// Who calls, as the routes found out from the key that was presented, and what that allows.
//
// Jobs belong to the key that began them. What concerns all callers (others' jobs, the cache, a priority above theirs)
// is for those who may manage the server: who has the admin key or, without one, the only key that there is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::serve {

struct Caller {
  std::string salt = {};  // set by the operator for the caller's key: prefixes are shared only within one salt. What a
                          // request asks for itself (cache_salt, extra_key) separates further and never joins others
  std::string name = {};  // of the key, for logs and turns: never the key itself; "" when none was asked for
  int32_t key = -1;       // which of the server's keys; -1: none was asked for, or the admin key
  bool may_manage = true;
};
std::string joined_salt(const Caller& caller, const std::string& of_request);

// Throws ApiError 403 for a caller who may not. what: "a priority above 0"; param: the field that asks for it.
void check_may_manage(const Caller& caller, std::string_view what, const std::string& param = {});

}  // namespace quire::serve
