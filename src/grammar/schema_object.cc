#include "grammar/schema_object.h"

#include <algorithm>
#include <cmath>

#include "grammar/source_reader.h"

namespace quire::grammar {
namespace {

// They say something about a value, not which values are right. $defs are read when something refers to them.
constexpr std::string_view kAnnotations[] = {
    "$anchor",          "$comment", "$defs",       "$id",        "$schema",         "$vocabulary", "contentSchema",
    "contentMediaType", "default",  "definitions", "deprecated", "contentEncoding", "description", "discriminator",
    "externalDocs",     "example",  "examples",    "id",         "readOnly",        "title",       "writeOnly"};

}  // namespace

bool is_annotation(std::string_view keyword) {
  return keyword.starts_with("x-") ||
         std::find(std::begin(kAnnotations), std::end(kAnnotations), keyword) != std::end(kAnnotations);
}

std::string written(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

bool is_whole(const Json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

SchemaObject::SchemaObject(const Json& json, std::string path, Places* unenforced)
    : json_(json), path_(std::move(path)), unenforced_(unenforced) {}

std::string SchemaObject::path(std::string_view part) const { return cat(path_, "/", part); }

const Json* SchemaObject::take(const char* keyword) {
  const auto found = json_.find(keyword);
  if (found == json_.end()) return nullptr;
  taken_.insert(keyword);
  return &*found;
}

const Json* SchemaObject::take_array(const char* keyword) {
  const Json* value = take(keyword);
  if (value && (!value->is_array() || value->empty())) fail("\"", keyword, "\" must be a list that is not empty");
  return value;
}

const Json* SchemaObject::take_object(const char* keyword) {
  const Json* value = take(keyword);
  if (value && !value->is_object()) fail("\"", keyword, "\" must be an object");
  return value;
}

const std::string* SchemaObject::take_string(const char* keyword) {
  const Json* value = take(keyword);
  if (value && !value->is_string()) fail("\"", keyword, "\" must be a string");
  return value ? value->get_ptr<const std::string*>() : nullptr;
}

std::optional<int32_t> SchemaObject::take_count(const char* keyword) {
  const Json* value = take(keyword);
  if (!value) return std::nullopt;
  const bool is_count = value->is_number_unsigned() || (value->is_number_integer() && value->get<int64_t>() >= 0);
  if (!is_count) fail("\"", keyword, "\" must be a whole number from 0 on");
  const uint64_t count = value->get<uint64_t>();
  if (count <= kMostRepeats) return static_cast<int32_t>(count);
  leave_out(keyword, "\"", keyword, "\" is over ", kMostRepeats);
  return std::nullopt;
}

Json SchemaObject::beside(std::string_view keyword) const {
  Json others = Json::object();
  for (const auto& [name, value] : json_.items())
    if (name != keyword && !is_annotation(name)) others[name] = value;
  return others;
}

void SchemaObject::take_all() {
  for (const auto& [keyword, value] : json_.items()) taken_.insert(keyword);
}

void SchemaObject::check_all_taken() {
  for (const auto& [keyword, value] : json_.items()) {
    if (!taken_.contains(keyword) && !is_annotation(keyword)) {
      leave_out(keyword, in_quotes(keyword), " is not supported there,");
    }
  }
}

}  // namespace quire::grammar
