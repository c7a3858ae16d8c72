#include "serve/page.h"

#include <openssl/sha.h>

#include <array>

#include "base/base64.h"
#include "base/check.h"

namespace quire::serve {

extern const unsigned char page_bytes[];  // made by cmake/embed.cmake
extern const size_t page_bytes_size;

namespace {

std::string sha256_in_base64(std::string_view text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return in_base64({reinterpret_cast<const char*>(hash.data()), hash.size()});
}

// The hashes of all elements of a kind, as a policy lists them.
std::string hashes_of(const std::string& element, std::string_view html) {
  const std::string begin = cat("<", element, ">"), end = cat("</", element, ">");
  std::string hashes;
  for (size_t open = html.find(begin); open != html.npos; open = html.find(begin, open)) {
    open += begin.size();
    const size_t close = html.find(end, open);
    check(close != html.npos, "a <", element, "> of the page does not end");
    hashes += cat(" 'sha256-", sha256_in_base64(html.substr(open, close - open)), "'");
  }
  return hashes.empty() ? " 'none'" : hashes;
}

}  // namespace

std::string content_policy(std::string_view html) {
  return cat("default-src 'none'; script-src", hashes_of("script", html), "; style-src", hashes_of("style", html),
             "; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'");
}

http::Response page() {
  static const std::string html(reinterpret_cast<const char*>(page_bytes), page_bytes_size);
  static const std::string policy = content_policy(html);
  return {.content_type = "text/html; charset=utf-8",
          .body = html,
          .headers = {{"content-security-policy", policy},
                      {"x-content-type-options", "nosniff"},
                      {"referrer-policy", "no-referrer"},
                      {"cache-control", "no-cache"}}};
}

}  // namespace quire::serve
