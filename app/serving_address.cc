#include "serving_address.h"

#include <string_view>

#include "base/check.h"

namespace quire::bench {

Address address_from(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  check(url.starts_with(kScheme), "the URL ", url, " does not begin with ", kScheme);
  std::string rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.pop_back();
  check(rest.find('/') == rest.npos, "the URL ", url, " has a path; give only http://HOST:PORT");
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != rest.npos && rest.find(']', colon) == rest.npos;
  Address address{rest.substr(0, has_port ? colon : rest.npos), has_port ? rest.substr(colon + 1) : "80"};
  if (address.host.starts_with('[') && address.host.ends_with(']'))  // an IPv6 address
    address.host = address.host.substr(1, address.host.size() - 2);
  check(!address.host.empty() && !address.port.empty(), "the URL ", url, " lacks a host or a port");
  return address;
}

}  // namespace quire::bench
