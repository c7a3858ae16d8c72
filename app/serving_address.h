// Where a server is: http://HOST:PORT, and nothing after it.
//
// Errors   CheckError for other URLs.
#pragma once
#include <string>

namespace quire::bench {

struct Address {
  std::string host, port;
  std::string text() const { return host + ":" + port; }
};
Address address_from(const std::string& url);

}  // namespace quire::bench
