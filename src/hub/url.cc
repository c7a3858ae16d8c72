#include "hub/url.h"

#include <algorithm>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/lower_case.h"

namespace quire::hub {
namespace {

const char* usual_port(std::string_view scheme) { return scheme == "https" ? "443" : "80"; }

bool is_port(std::string_view text) {
  const bool is_number = !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos;
  return is_number && std::stoi(std::string(text)) <= 65535;
}

bool is_host(std::string_view text) {
  const auto bad = [](char c) {
    return c <= ' ' || c >= 0x7f || std::string_view("/?#@[]\\<>\"").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::none_of(text.begin(), text.end(), bad);
}

// HOST, HOST:PORT, [ADDRESS]:PORT
void read_authority(std::string_view text, std::string_view whole, Url& url) {
  std::string_view host = text.substr(0, text.find(':')), port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    check(end != text.npos, in_quotes(whole), " is no URL: \"[\" has no end");
    host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
  } else {
    text.remove_prefix(host.size());
  }
  port = text.empty() ? usual_port(url.scheme) : text.substr(1);
  check(is_host(host) && (text.empty() || text.front() == ':') && is_port(port), in_quotes(whole),
        " is no URL of a host");
  url.host = lower_case(host);
  url.port = port;
}

// As a request line has it: without the fragment, and what may not stand there encoded.
std::string target_of(std::string_view text) {
  text = text.substr(0, text.find('#'));
  std::string target = text.starts_with('/') ? "" : "/";
  for (const char c : text) {
    const bool safe = c > ' ' && c < 0x7f;
    target += safe ? std::string(1, c) : encoded(std::string_view(&c, 1), true);
  }
  return target;
}

}  // namespace

std::string Url::authority() const {
  const std::string shown = host.find(':') == host.npos ? host : "[" + host + "]";
  return port == usual_port(scheme) ? shown : shown + ":" + port;
}

std::string to_string(const Url& url) { return url.scheme + "://" + url.authority() + url.target; }

Url parse_url(std::string_view text) {
  const size_t colon = text.find("://");
  Url url;
  if (colon != text.npos) url.scheme = lower_case(text.substr(0, colon));
  check(url.scheme == "http" || url.scheme == "https", in_quotes(text), " is no http:// or https:// URL");
  const std::string_view rest = text.substr(colon + 3);
  const size_t end = std::min(rest.size(), rest.find_first_of("/?#"));
  read_authority(rest.substr(0, end), text, url);
  url.target = target_of(rest.substr(end));
  return url;
}

Url redirected(const Url& from, std::string_view location) {
  const size_t colon = location.find("://");
  if (colon != location.npos && location.find_first_of("/?#") > colon) return parse_url(location);
  if (location.starts_with("//")) return parse_url(from.scheme + ":" + std::string(location));
  Url to = from;
  const std::string path = from.target.substr(0, from.target.find('?'));
  if (location.starts_with('/'))
    to.target = target_of(location);
  else if (location.starts_with('?'))
    to.target = target_of(path + std::string(location));
  else
    to.target = target_of(path.substr(0, path.rfind('/') + 1) + std::string(location));
  return to;
}

std::string encoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/');
    if (plain) {
      out += c;
      continue;
    }
    constexpr const char* kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

}  // namespace quire::hub
