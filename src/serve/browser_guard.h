// What a browser may do on behalf of a web page. Other programs send neither header and notice nothing.
//
// Origin   a page's own, with the host and port of Host, or one that the operator names: else 403.
// Host     on a server that listens on a loopback address only names of this machine, and those of named origins: a
//          page that had its own name point here (DNS rebinding) comes with that name. Else 403.
// Bodies   a page may send forms and plain text to any server without asking: 415 where JSON is expected.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/exchange.h"
#include "serve/api_error.h"

namespace quire::serve {

bool is_loopback(std::string_view host);  // "localhost", "127.0.0.1", "::1"

class BrowserGuard {
 public:
  // host: that the server was told to listen on; origins: "https://chat.example", or "*" for all.
  BrowserGuard(std::string host, std::vector<std::string> origins);

  std::optional<ApiError> refusal(const http::Request& head) const;  // 403
  http::Headers headers(const http::Request& head) const;            // of the answer to a page of a named origin
  // The answer to what a browser asks before it lets such a page call; none when it is not that question.
  std::optional<http::Response> preflight(const http::Request& head) const;

 private:
  bool is_named(std::string_view origin) const;
  bool is_own_host(std::string_view host) const;

  const std::string host_;
  const std::vector<std::string> origins_;
};

// For calls that take JSON; by the head: none when there is no body.
std::optional<ApiError> refusal_of_type(const http::Request& head);

}  // namespace quire::serve
