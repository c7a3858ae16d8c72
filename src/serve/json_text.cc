#include "serve/json_text.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace quire::serve {

namespace {

template <class Number>
std::string shortest(Number value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

}  // namespace

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void append_escaped(std::string& json, std::string_view text) {
  const std::string quoted = json_string(text);
  json.append(quoted, 1, quoted.size() - 2);
}

std::string json_number(double value) { return shortest(value); }
std::string json_number(float value) { return shortest(value); }

std::string dumped(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void respond_json(http::Exchange& exchange, const nlohmann::ordered_json& body) {
  exchange.respond({.body = dumped(body)});
}

}  // namespace quire::serve
