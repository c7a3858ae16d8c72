#include "hub/proxy.h"

#include <algorithm>
#include <sstream>

#include "base/check.h"

namespace quire::hub {
namespace {

bool is_excepted(const Url& url, std::string entry) {
  std::erase(entry, ' ');
  if (entry == "*") return true;
  const size_t colon = entry.rfind(':');
  if (colon != entry.npos && entry.find(':') == colon) {
    if (entry.substr(colon + 1) != url.port) return false;
    entry.resize(colon);
  }
  if (entry.starts_with('.')) entry.erase(0, 1);
  std::transform(entry.begin(), entry.end(), entry.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return !entry.empty() && (url.host == entry || url.host.ends_with("." + entry));
}

bool is_excepted_by_list(const Url& url, const std::string& list) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');)
    if (is_excepted(url, entry)) return true;
  return false;
}

std::string named_proxy(const Url& url, const Environment& environment) {
  const auto either = [&](const char* small, const char* capitals) {
    std::string value = environment(small);
    return value.empty() ? environment(capitals) : value;
  };
  std::string named = url.is_https() ? either("https_proxy", "HTTPS_PROXY") : environment("http_proxy");
  return named.empty() ? either("all_proxy", "ALL_PROXY") : named;
}

int digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

Proxy parse_proxy(std::string text) {
  if (text.find("://") == text.npos) text = "http://" + text;
  const size_t begin = text.find("://") + 3, at = text.find('@');
  Proxy proxy;
  if (at != text.npos && at < std::min(text.size(), text.find('/', begin))) {
    proxy.credentials = decoded(std::string_view(text).substr(begin, at - begin));
    text.erase(begin, at + 1 - begin);
  }
  check(text.starts_with("http://"), "is no http:// proxy");
  proxy.url = parse_url(text);
  return proxy;
}

}  // namespace

std::optional<Proxy> proxy_for(const Url& url, const Environment& environment) {
  const std::string named = named_proxy(url, environment);
  if (named.empty()) return std::nullopt;
  const std::string small = environment("no_proxy");
  if (is_excepted_by_list(url, small.empty() ? environment("NO_PROXY") : small)) return std::nullopt;
  try {
    return parse_proxy(named);
  } catch (const CheckError& error) {
    throw CheckError(cat("the proxy for ", url.host, " (", url.scheme, "_proxy): ", error.what()));
  }
}

}  // namespace quire::hub
