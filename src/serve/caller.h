// Who calls, as the key tells that was presented, and what that allows. Keys are compared in constant time.
//
// Jobs belong to the key that began them. What concerns all callers (others' jobs, the cache, a priority above theirs)
// is for those who may manage the server: who has the admin key or, without one, the only key that there is.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/exchange.h"

namespace quire::serve {

struct ApiKey {
  std::string key;
  std::string salt = {};  // Caller::salt
  std::string name = {};  // Caller::name
};

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

// Time depends on the lengths alone.
bool equal_in_constant_time(std::string_view one, std::string_view other);

// From "Authorization: Bearer KEY" or "X-API-Key: KEY"; "" when there is none.
std::string_view presented_key(const http::Request& request);

// Looks at all keys, whichever fits. None: no key fits. Without keys everybody does.
std::optional<Caller> caller_with(std::string_view key, const std::vector<ApiKey>& keys, const std::string& admin_key);

}  // namespace quire::serve
