#include "serve/refusal_reason.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace quire::serve {
namespace {

// Sentences end with what came: "expected a number, got "hot"", "... ; last read: '"hot'".
std::string without_values(const std::string& message) {
  const size_t end = std::min(message.find(", got \""), message.find("; last read"));
  return message.substr(0, end);
}

}  // namespace

std::string refusal_reason(const http::Response& response) {
  if (response.status < 400) return "";
  const auto body = nlohmann::json::parse(response.body, nullptr, false);
  if (!body.is_object() || !body.contains("error")) return "";
  const nlohmann::json& error = body["error"];
  const bool told = error.is_object() && error.contains("message") && error["message"].is_string();
  return told ? without_values(error["message"].get<std::string>()) : "";
}

}  // namespace quire::serve
