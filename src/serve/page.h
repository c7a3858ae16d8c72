// The web page, from web/index.html as it was when this was built.
//
// It holds its own script and style and may load nothing from elsewhere: the answer's policy allows exactly those that
// were built in, by their hashes, and connections back to this server.
#pragma once
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace quire::serve {

http::Response page();

std::string content_policy(std::string_view html);  // the value of Content-Security-Policy

}  // namespace quire::serve
