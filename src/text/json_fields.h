// Fields of JSON objects from files, with refusals that name them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"

namespace quire::text {

// Null where the key is missing, and where its value is null.
inline const nlohmann::json& optional_field(const nlohmann::json& object, std::string_view key) {
  static const nlohmann::json kNull;
  check(object.is_object(), "what should have the key \"", key, "\" is not an object but ", object.type_name());
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

inline const nlohmann::json& field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json& value = optional_field(object, key);
  check(!value.is_null(), "the key \"", key, "\" is missing");
  return value;
}

inline const std::string& text_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json& value = field(object, key);
  check(value.is_string(), "\"", key, "\" is not a string but ", value.type_name());
  return value.get_ref<const std::string&>();
}

inline bool flag_field(const nlohmann::json& object, std::string_view key, bool otherwise) {
  const nlohmann::json& value = optional_field(object, key);
  check(value.is_null() || value.is_boolean(), "\"", key, "\" is not true or false but ", value.type_name());
  return value.is_null() ? otherwise : value.get<bool>();
}

inline const nlohmann::json& list_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json& value = field(object, key);
  check(value.is_array(), "\"", key, "\" is not an array but ", value.type_name());
  return value;
}

}  // namespace quire::text
