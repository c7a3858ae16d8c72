// Who may call: keys as callers present them, compared in constant time.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/exchange.h"
#include "serve/caller.h"
#include "serve/routes.h"

namespace quire::serve {

// Time depends on the lengths alone.
bool equal_in_constant_time(std::string_view one, std::string_view other);

// From "Authorization: Bearer KEY" or "X-API-Key: KEY"; "" when there is none.
std::string_view presented_key(const http::Request& request);

// Looks at all keys, whichever fits. None: no key fits. Without keys everybody does.
std::optional<Caller> caller_with(std::string_view key, const std::vector<ApiKey>& keys, const std::string& admin_key);

}  // namespace quire::serve
