// The name under which one request is found again: in the answer's x-request-id, in the log, and in the caller's own.
#pragma once
#include <string>
#include <string_view>

namespace quire::http {

// What the client calls it, if that is 1 to 128 printable ASCII characters without a space; else a new one.
std::string request_id(std::string_view of_client);

}  // namespace quire::http
