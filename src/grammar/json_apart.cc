#include "grammar/json_apart.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace quire::grammar {
namespace {

constexpr int kMostReferences = 16;  // followed one after the other

// The schema itself, once references are followed; null where that leads nowhere.
const Json* resolved(const Json& schema, const FindReferred& find) {
  const Json* at = &schema;
  for (int i = 0; i < kMostReferences && at && at->is_object(); ++i) {
    const auto reference = at->find("$ref");
    if (reference == at->end()) return at;
    at = reference->is_string() ? find(reference->get_ref<const std::string&>()) : nullptr;
  }
  return nullptr;
}

// Not in the order of their keys: it does not make values different.
using Values = std::set<nlohmann::json>;

std::optional<Values> fixed_values(const Json& schema) {
  if (const auto value = schema.find("const"); value != schema.end()) return Values{nlohmann::json(*value)};
  const auto values = schema.find("enum");
  if (values == schema.end() || !values->is_array()) return std::nullopt;
  Values fixed;
  for (const Json& value : *values) fixed.insert(nlohmann::json(value));
  return fixed;
}

bool no_common_value(const Values& one, const Values& other) {
  return std::none_of(one.begin(), one.end(), [&](const nlohmann::json& value) { return other.contains(value); });
}

// The types that a schema names, or those of its fixed values. Whole numbers are numbers.
std::optional<std::vector<std::string>> types_of(const Json& schema) {
  std::vector<std::string> types;
  if (const auto values = fixed_values(schema)) {
    for (const nlohmann::json& value : *values) types.push_back(value.type_name());
    return types;
  }
  const auto type = schema.find("type");
  if (type == schema.end()) return std::nullopt;
  const auto add = [&](const Json& name) {
    if (name.is_string()) types.push_back(name == "integer" ? "number" : name.get<std::string>());
    return name.is_string();
  };
  if (type->is_array()) {
    if (!std::all_of(type->begin(), type->end(), add)) return std::nullopt;
  } else if (!add(*type)) {
    return std::nullopt;
  }
  return types;
}

bool no_common_type(const Json& one, const Json& other) {
  const auto types = types_of(one), others = types_of(other);
  if (!types || !others) return false;
  return std::none_of(types->begin(), types->end(), [&](const std::string& type) {
    return std::find(others->begin(), others->end(), type) != others->end();
  });
}

bool requires_member(const Json& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

const Json* member(const Json& schema, const std::string& name, const FindReferred& find) {
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return nullptr;
  const auto property = properties->find(name);
  return property == properties->end() ? nullptr : resolved(*property, find);
}

bool is_object_schema(const Json& schema) { return schema.is_object() && schema.value("type", Json()) == "object"; }

bool tagged_apart(const Json& one, const Json& other, const FindReferred& find) {
  if (!is_object_schema(one) || !is_object_schema(other) || !one.contains("properties")) return false;
  const Json& properties = one.at("properties");
  if (!properties.is_object()) return false;
  for (const auto& [name, schema] : properties.items()) {
    if (!requires_member(one, name) || !requires_member(other, name)) continue;
    const Json *tag = member(one, name, find), *other_tag = member(other, name, find);
    if (!tag || !other_tag) continue;
    const auto values = fixed_values(*tag), others = fixed_values(*other_tag);
    if (values && others && no_common_value(*values, *others)) return true;
  }
  return false;
}

}  // namespace

bool surely_apart(const Json& one, const Json& other, const FindReferred& find) {
  const Json *a = resolved(one, find), *b = resolved(other, find);
  if (!a || !b) return false;
  if (no_common_type(*a, *b)) return true;
  const auto values = fixed_values(*a), others = fixed_values(*b);
  if (values && others) return no_common_value(*values, *others);
  return tagged_apart(*a, *b, find);
}

}  // namespace quire::grammar
