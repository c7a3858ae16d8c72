// http and https addresses: read, joined with where a redirect leads, and written back.
//
// Errors   CheckError: other schemes, no host, a port that is none, characters that cannot stand in a request line.
#pragma once
#include <string>
#include <string_view>

namespace quire::hub {

struct Url {
  std::string scheme, host, port, target;  // "https", "example.com" or "::1", "443", "/path?query"

  bool is_https() const { return scheme == "https"; }
  bool same_origin(const Url& other) const {
    return scheme == other.scheme && host == other.host && port == other.port;
  }
  std::string authority() const;  // as the Host header has it: the port only where it is not the scheme's own
};
std::string to_string(const Url& url);

Url parse_url(std::string_view text);
Url redirected(const Url& from, std::string_view location);  // absolute, or relative in any way

// Percent-encodes what may not stand in a path; '/' stays where it is kept.
std::string encoded(std::string_view text, bool keep_slashes);

}  // namespace quire::hub
