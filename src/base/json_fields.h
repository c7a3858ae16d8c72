// Values of JSON objects from files, read with their types and ranges. A value that is null counts as missing.
//
// Errors   CheckError that names the key and the value; the caller adds the file.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"

namespace quire {

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
  check(value.is_string(), key, " is not a string but ", value.type_name());
  return value.get_ref<const std::string&>();
}

inline bool flag_field(const nlohmann::json& object, std::string_view key, bool otherwise) {
  const nlohmann::json& value = optional_field(object, key);
  check(value.is_null() || value.is_boolean(), key, " is not true or false but ", value.type_name());
  return value.is_null() ? otherwise : value.get<bool>();
}

inline double number_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json& value = field(object, key);
  check(value.is_number(), key, " is not a number but ", value.type_name());
  return value.get<double>();
}

// A whole number between the bounds, both included. The name is for the refusal.
inline int32_t to_count(const nlohmann::json& value, std::string_view name, int32_t least, int32_t most) {
  check(value.is_number_integer(), name, " is not a whole number but ", value.type_name());
  const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(most);
  check(fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most, name, " = ", value.dump(),
        " is not between ", least, " and ", most);
  return value.get<int32_t>();
}
inline int32_t count_field(const nlohmann::json& object, std::string_view key, int32_t least, int32_t most) {
  return to_count(field(object, key), key, least, most);
}

inline const nlohmann::json& list_field(const nlohmann::json& object, std::string_view key) {
  const nlohmann::json& value = field(object, key);
  check(value.is_array(), key, " is not an array but ", value.type_name());
  return value;
}

}  // namespace quire
