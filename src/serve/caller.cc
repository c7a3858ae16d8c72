#include "serve/caller.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "base/check.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

bool begins_with_bearer(std::string_view text) {
  constexpr std::string_view kBearer = "bearer ";
  const auto lower = [](char letter) {
    return static_cast<char>(letter >= 'A' && letter <= 'Z' ? letter + 32 : letter);
  };
  return text.size() > kBearer.size() &&
         std::equal(kBearer.begin(), kBearer.end(), text.begin(), [&](char a, char b) { return a == lower(b); });
}

}  // namespace

// The length in front keeps ("a", "bc") and ("ab", "c") apart.
std::string joined_salt(const Caller& caller, const std::string& of_request) {
  if (caller.salt.empty() && of_request.empty()) return "";
  return cat(caller.salt.size(), ":", caller.salt, of_request);
}

void check_may_manage(const Caller& caller, std::string_view what, const std::string& param) {
  if (!caller.may_manage)
    throw ApiError(403, cat(what, " concerns all callers, so it needs the key that --admin-api-key sets"), param);
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

std::string_view presented_key(const http::Request& request) {
  std::string_view value = request.header("authorization");
  if (!begins_with_bearer(value)) return request.header("x-api-key");
  value.remove_prefix(std::string_view("bearer ").size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

std::optional<Caller> caller_with(std::string_view key, const std::vector<ApiKey>& keys, const std::string& admin_key) {
  const bool is_admin = !admin_key.empty() && equal_in_constant_time(key, admin_key);
  const bool is_everybody = admin_key.empty() && keys.size() <= 1;
  Caller caller{.name = is_admin ? "admin" : "", .may_manage = is_admin || is_everybody};
  for (size_t i = 0; i < keys.size(); ++i)
    if (equal_in_constant_time(key, keys[i].key) && !key.empty()) {
      caller.salt = keys[i].salt;
      caller.name = keys[i].name;
      caller.key = static_cast<int32_t>(i);
    }
  if (caller.key < 0 && !is_admin && !keys.empty()) return std::nullopt;
  return caller;
}

}  // namespace quire::serve
