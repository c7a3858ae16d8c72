#include "serve/api_error.h"

#include <algorithm>

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

// Sentences end with what came: "expected a number, got "hot"", "... ; last read: '"hot'".
std::string without_values(const std::string& message) {
  const size_t end = std::min(message.find(", got \""), message.find("; last read"));
  return message.substr(0, end);
}

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

std::string refusal_reason(const http::Response& response) {
  if (response.status < 400) return "";
  const auto body = nlohmann::json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("error")) return "";
  const nlohmann::json& error = body["error"];
  const bool has_message = error.is_object() && error.contains("message") && error["message"].is_string();
  return has_message ? without_values(error["message"].get<std::string>()) : "";
}

}  // namespace quire::serve
