#include "serve/fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

std::string shown(const ordered_json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return cat("an array of ", value.size());
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>(), 40);
  return value.dump();
}

std::string shown(double number) { return ordered_json(number).dump(); }

[[noreturn]] void wrong(const std::string& path, const std::string& expected, const ordered_json& got) {
  refuse(path, cat("expected ", expected, ", got ", shown(got)));
}

// The whole number that a value is, also when it is written with a point; none when it is none or does not fit.
std::optional<int64_t> whole_number(const ordered_json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kMostExact = 9007199254740992;  // 2^53: from here on doubles skip numbers
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (std::abs(number) >= kMostExact || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

const std::string& checked_string(const ordered_json& value, const std::string& path, size_t most_bytes) {
  if (!value.is_string()) wrong(path, "a string", value);
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() > most_bytes) refuse(path, cat("expected at most ", most_bytes, " bytes, got ", text.size()));
  return text;
}

void check_count(const ordered_json& array, const std::string& path, size_t most) {
  if (array.size() > most) refuse(path, cat("expected at most ", most, " entries, got ", array.size()));
}

}  // namespace

void refuse(const std::string& path, const std::string& why) { throw ApiError(400, cat(path, ": ", why), path); }

Fields::Fields(const ordered_json& object, std::string path, Ignored* ignored)
    : object_(object), path_(std::move(path)), ignored_(ignored) {
  constexpr size_t kLarge = 64;
  if (!object_.is_object()) wrong(path_.empty() ? "the body" : path_, "an object", object_);
  if (object_.size() < kLarge) return;
  for (const auto& [name, value] : object_.get_ref<const ordered_json::object_t&>()) sorted_.push_back({name, &value});
  std::sort(sorted_.begin(), sorted_.end(), [](const Key& one, const Key& other) { return one.name < other.name; });
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : cat(path_, ".", name);
}

const ordered_json* Fields::find(std::string_view name) const {
  const ordered_json* value = nullptr;
  if (sorted_.empty()) {
    const auto found = object_.find(name);
    if (found != object_.end()) value = &*found;
  } else {
    const auto found = std::lower_bound(sorted_.begin(), sorted_.end(), name,
                                        [](const Key& key, std::string_view wanted) { return key.name < wanted; });
    if (found != sorted_.end() && found->name == name) value = found->value;
  }
  return value && !value->is_null() ? value : nullptr;
}

bool Fields::has(std::string_view name) const { return find(name) != nullptr; }

const ordered_json* Fields::raw(std::string_view name) {
  read_.emplace(name);
  return find(name);
}

const ordered_json& Fields::required(std::string_view name) {
  const ordered_json* value = raw(name);
  if (!value) throw ApiError(400, cat(path_of(name), " is required"), path_of(name));
  return *value;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const ordered_json* value = raw(name);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong(path_of(name), "true or false", *value);
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t least, int64_t most) {
  const ordered_json* value = raw(name);
  if (!value) return std::nullopt;
  const std::optional<int64_t> number = whole_number(*value);
  if (!number || *number < least || *number > most)
    wrong(path_of(name), cat("a whole number from ", least, " to ", most), *value);
  return number;
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const ordered_json* value = raw(name);
  if (!value) return std::nullopt;
  if (!value->is_number() || value->get<double>() < least || value->get<double>() > most)
    wrong(path_of(name), cat("a number from ", shown(least), " to ", shown(most)), *value);
  return value->get<double>();
}

std::optional<std::string> Fields::string(std::string_view name, size_t most_bytes) {
  const ordered_json* value = raw(name);
  if (!value) return std::nullopt;
  return checked_string(*value, path_of(name), most_bytes);
}

std::vector<std::string> Fields::strings(std::string_view name, size_t most, size_t most_bytes_each, Nulls nulls) {
  const ordered_json* value = raw(name);
  if (!value) return {};
  const std::string path = path_of(name);
  if (value->is_string()) return {checked_string(*value, path, most_bytes_each)};
  if (!value->is_array()) wrong(path, "a string or an array of strings", *value);
  check_count(*value, path, most);
  std::vector<std::string> all;
  for (size_t i = 0; i < value->size(); ++i) {
    const ordered_json& one = (*value)[i];
    if (one.is_null() && nulls == Nulls::skipped) continue;
    all.push_back(checked_string(one, cat(path, "[", i, "]"), most_bytes_each));
  }
  return all;
}

std::vector<int32_t> Fields::token_ids(std::string_view name, size_t most) {
  const ordered_json* value = raw(name);
  if (!value) return {};
  const std::string path = path_of(name);
  if (!value->is_array()) wrong(path, "an array of token ids", *value);
  check_count(*value, path, most);
  std::vector<int32_t> ids;
  ids.reserve(value->size());
  for (const ordered_json& one : *value) {
    const std::optional<int64_t> id = whole_number(one);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      wrong(cat(path, "[", ids.size(), "]"), "a token id", one);
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::optional<Fields> Fields::object(std::string_view name) {
  const ordered_json* value = raw(name);
  if (!value) return std::nullopt;
  return Fields(*value, path_of(name), ignored_);
}

void Fields::refuse(std::string_view name, std::string_view why) {
  if (raw(name)) throw ApiError(400, cat(path_of(name), ": ", why), path_of(name));
}

void Fields::no_effect(std::string_view name, std::string_view why) {
  const ordered_json* value = raw(name);
  if (!value || *value == false) return;
  if (strict()) refuse(name, why);
  ignored_->add(path_of(name));
}

void Fields::finish() const {
  if (strict()) return refuse_unread();
  for (const auto& [name, value] : object_.items())
    if (!value.is_null() && !read_.contains(name)) ignored_->add(path_of(name));
}

void Fields::refuse_unread() const {
  constexpr int kMostNamed = 5;
  std::string names, first;
  int unread = 0;
  for (const auto& [name, value] : object_.items()) {
    if (value.is_null() || read_.contains(name)) continue;
    if (first.empty()) first = path_of(name);
    if (++unread <= kMostNamed) names += cat(names.empty() ? "" : ", ", in_quotes(path_of(name), 60));
  }
  if (unread == 0) return;
  if (unread > kMostNamed) names += cat(" and ", unread - kMostNamed, " more");
  throw ApiError(400, cat("unsupported parameter", unread > 1 ? "s" : "", ": ", names), first);
}

}  // namespace quire::serve
