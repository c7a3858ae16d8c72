// Which proxy an address is reached through, by the variables that other programs read: https_proxy or http_proxy, else
// all_proxy, also in capitals (but not HTTP_PROXY, which a web server may have set for its own reasons), unless
// no_proxy names the host: a list of hosts and of domains, with or without a leading dot, or "*".
//
// Errors   CheckError: a proxy that is no http:// URL.
#pragma once
#include <optional>
#include <string>

#include "hub/settings.h"
#include "hub/url.h"

namespace quire::hub {

struct Proxy {
  Url url;
  std::string credentials = {};  // USER:PASSWORD, decoded; "": none
};
std::optional<Proxy> proxy_for(const Url& url, const Environment& environment);

}  // namespace quire::hub
