#include "serve/api_error.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kRetryAfterSeconds = "1";

const char* openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

ordered_json null_if_empty(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }

}  // namespace

ordered_json error_body(const ApiError& error, Interface interface) {
  ordered_json about = {{"message", error.what()}};
  if (interface == Interface::openai) {
    about["type"] = openai_type(error.status);
    about["param"] = null_if_empty(error.param);
    about["code"] = null_if_empty(error.code);
  }
  return {{"error", std::move(about)}};
}

http::Response error_response(const ApiError& error, Interface interface) {
  // Messages quote what callers sent.
  http::Response response{
      .status = error.status,
      .body = error_body(error, interface).dump(-1, ' ', false, ordered_json::error_handler_t::replace)};
  if (error.status == 503) response.headers.emplace_back("retry-after", kRetryAfterSeconds);
  if (error.status == 401) response.headers.emplace_back("www-authenticate", "Bearer");
  return response;
}

}  // namespace quire::serve
