#include "serve/browser_guard.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/lower_case.h"

namespace quire::serve {
namespace {

// What pages may send, by name or by beginning: those of OpenAI's client in browsers among them.
constexpr std::string_view kRequestHeaders[] = {"accept",     "authorization", "content-type", "openai-*",
                                                "user-agent", "x-api-key",     "x-request-id", "x-stainless-*"};
constexpr std::string_view kUsualHeaders = "authorization, content-type, x-api-key, x-request-id";
constexpr std::string_view kReadableHeaders = "x-request-id, x-quire-ignored, retry-after";

std::string_view without_spaces(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// "a.example:443" > "a.example" for https, and a port that is not the scheme's own stays: as browsers write Host.
std::string without_port_of(std::string_view scheme, std::string_view authority) {
  const std::string_view usual_port = scheme == "https" ? ":443" : ":80";
  if (authority.ends_with(usual_port)) authority.remove_suffix(usual_port.size());
  return lower_case(authority);
}

std::string authority_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == origin.npos ? "" : without_port_of(origin.substr(0, scheme), origin.substr(scheme + 3));
}

bool is_own(std::string_view origin, std::string_view host) {
  const std::string authority = authority_of(origin);
  return !authority.empty() && authority == without_port_of(origin.substr(0, origin.find("://")), host);
}

// "[::1]:80" > "::1", "a:80" > "a".
std::string name_in(std::string_view authority) {
  if (authority.starts_with('[')) return lower_case(authority.substr(1, authority.find(']') - 1));
  return lower_case(authority.substr(0, authority.find(':')));
}

bool may_be_sent(std::string_view name) {
  return std::any_of(std::begin(kRequestHeaders), std::end(kRequestHeaders), [&](std::string_view known) {
    return known.ends_with('*') ? name.starts_with(known.substr(0, known.size() - 1)) : name == known;
  });
}

// What was asked for, if all of it may be sent.
std::string allowed_headers(std::string_view asked) {
  std::string names;
  for (std::string_view rest = asked; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string name = lower_case(without_spaces(rest.substr(0, comma)));
    if (!may_be_sent(name)) return std::string(kUsualHeaders);
    names += cat(names.empty() ? "" : ", ", name);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return names.empty() ? std::string(kUsualHeaders) : names;
}

bool has_body(const http::Request& head) {
  const std::string_view length = head.header("content-length");
  return !head.header("transfer-encoding").empty() || length.find_first_not_of('0') != length.npos;
}

}  // namespace

// An address, not a name that begins like one: 127.evil.example is anybody's.
bool is_loopback(std::string_view host) {
  const bool is_address = host.find_first_not_of("0123456789.") == host.npos;
  return (is_address && host.starts_with("127.")) || host == "localhost" || host == "::1";
}

BrowserGuard::BrowserGuard(std::string host, std::vector<std::string> origins)
    : host_(std::move(host)), origins_(std::move(origins)) {}

bool BrowserGuard::is_named(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& one) { return one == "*" || one == origin; });
}

bool BrowserGuard::is_own_host(std::string_view host) const {
  const std::string name = name_in(host);
  if (!is_loopback(host_) || is_loopback(name) || name == lower_case(host_)) return true;
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& one) { return one == "*" || name_in(authority_of(one)) == name; });
}

std::optional<ApiError> BrowserGuard::refusal(const http::Request& head) const {
  const std::string_view host = head.header("host"), origin = head.header("origin");
  if (!host.empty() && !is_own_host(host))
    return ApiError(403, cat("this server is not called ", in_quotes(host, 100),
                             ": it listens on a loopback address; --allow-origin names others that lead to it"));
  if (origin.empty() || is_named(origin) || is_own(origin, host)) return std::nullopt;
  return ApiError(403, cat("web pages of ", in_quotes(origin, 100),
                           " may not call this server; --allow-origin names those that may"));
}

http::Headers BrowserGuard::headers(const http::Request& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty() || !is_named(origin)) return {};
  const bool all = std::find(origins_.begin(), origins_.end(), "*") != origins_.end();
  return {{"access-control-allow-origin", all ? "*" : std::string(origin)},
          {"access-control-expose-headers", std::string(kReadableHeaders)},
          {"vary", "origin"}};
}

std::optional<http::Response> BrowserGuard::preflight(const http::Request& head) const {
  const std::string_view origin = head.header("origin");
  if (head.method != "OPTIONS" || origin.empty() || !is_named(origin)) return std::nullopt;
  return http::Response{
      .status = 204,
      .body = {},
      .headers = {{"access-control-allow-methods", "GET, POST"},
                  {"access-control-allow-headers", allowed_headers(head.header("access-control-request-headers"))},
                  {"access-control-max-age", "600"}}};
}

std::optional<ApiError> refusal_of_type(const http::Request& head) {
  const std::string_view given = head.header("content-type");
  const std::string type = lower_case(without_spaces(given.substr(0, given.find(';'))));
  const bool simple =
      type == "application/x-www-form-urlencoded" || type == "multipart/form-data" || type == "text/plain";
  if (!has_body(head)) return std::nullopt;
  const std::string_view encoding = head.header("content-encoding");
  if (!encoding.empty() && lower_case(encoding) != "identity")
    return ApiError(415, cat("a body of encoding ", in_quotes(encoding, 40), " is not read; send it as it is"));
  if (!simple) return std::nullopt;
  return ApiError(
      415, cat("a body of type ", type, " is not read; send JSON, and say so: -H 'Content-Type: application/json'"));
}

}  // namespace quire::serve
