#include "grammar/json_merge.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace quire::grammar {
namespace {

constexpr int kMostDepth = 32;

using MaybeJson = std::optional<Json>;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Json listed(const Json& value) { return value.is_array() ? value : Json::array({value}); }

bool contains(const Json& list, const Json& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

Json common(const Json& one, const Json& other) {
  Json values = Json::array();
  for (const Json& value : one)
    if (contains(other, value)) values.push_back(value);
  return values;
}

// Whole numbers are numbers.
Json common_types(const Json& one, const Json& other) {
  Json types = common(listed(one), listed(other));
  const auto narrowed = [&](const Json& narrow, const Json& wide) {
    if (contains(listed(narrow), "integer") && contains(listed(wide), "number") && !contains(types, "integer") &&
        !contains(types, "number"))
      types.push_back("integer");
  };
  narrowed(one, other);
  narrowed(other, one);
  return types;
}

Json joined(Json list, const Json& more) {
  for (const Json& value : more)
    if (!contains(list, value)) list.push_back(value);
  return list;
}

class Merger {
 public:
  Merger(const FindReferred& find, int& steps_left) : find_(find), steps_left_(steps_left) {}

  MaybeJson merge(const Json& one, const Json& other) {
    if (one.is_boolean()) return one.get<bool>() ? other : one;
    if (other.is_boolean()) return other.get<bool>() ? one : other;
    if (!one.is_object() || !other.is_object() || depth_ >= kMostDepth || --steps_left_ < 0) return std::nullopt;
    ++depth_;
    MaybeJson both = merge_objects(one, other);
    --depth_;
    return both;
  }

 private:
  MaybeJson merge_objects(const Json& one, const Json& other) {
    if (one == other) return one;
    if (one.contains("$ref")) return merge_reference(one, other);
    if (other.contains("$ref")) return merge_reference(other, one);
    MaybeJson both = merge_members(one, other);
    if (!both || both->is_boolean()) return both;
    for (const auto& [keyword, value] : other.items()) {
      if (is_annotation(keyword) || is_one_of(keyword, {"properties", "additionalProperties"})) continue;
      const auto place = both->find(keyword);
      if (place == both->end()) {
        (*both)[keyword] = value;
      } else if (*place != value) {
        const MaybeJson combined = combine(keyword, *place, value);
        if (!combined) return std::nullopt;
        if (combined->is_array() && combined->empty()) return Json(false);
        *place = *combined;
      }
    }
    return both;
  }

  MaybeJson merge_reference(const Json& referring, const Json& other) {
    const Json& reference = referring.at("$ref");
    const Json* target = reference.is_string() ? find_(reference.get_ref<const std::string&>()) : nullptr;
    if (!target) return std::nullopt;
    Json beside = referring;
    beside.erase("$ref");
    const MaybeJson more = merge(beside, other);
    return more ? merge(*target, *more) : std::nullopt;
  }

  // What one schema does not list, its "additionalProperties" speak of.
  MaybeJson merge_members(const Json& one, const Json& other) {
    Json both = one;
    const auto has = [](const Json& schema, const char* keyword) { return schema.contains(keyword); };
    if (!has(other, "properties") && !has(other, "additionalProperties")) return both;
    if (has(one, "patternProperties") || has(other, "patternProperties")) return std::nullopt;
    const Json listed_here = one.value("properties", Json::object()), there = other.value("properties", Json::object());
    const Json others_here = one.value("additionalProperties", Json(true));
    const Json others_there = other.value("additionalProperties", Json(true));
    if (!listed_here.is_object() || !there.is_object()) return std::nullopt;
    Json members = Json::object();
    for (const Json* names : {&listed_here, &there}) {
      for (const auto& item : names->items()) {
        const std::string& name = item.key();
        if (members.contains(name)) continue;
        const MaybeJson member = merge(listed_here.value(name, others_here), there.value(name, others_there));
        if (!member) return std::nullopt;
        members[name] = *member;
      }
    }
    const MaybeJson others = merge(others_here, others_there);
    if (!others) return std::nullopt;
    if (!members.empty()) both["properties"] = std::move(members);
    if (has(one, "additionalProperties") || has(other, "additionalProperties")) both["additionalProperties"] = *others;
    return both;
  }

  // Two values of one keyword. An empty list: nothing satisfies both.
  MaybeJson combine(const std::string& keyword, const Json& one, const Json& other) {
    const bool numbers = one.is_number() && other.is_number(), lists = one.is_array() && other.is_array();
    if (numbers && is_one_of(keyword, {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}))
      return std::max(one, other);
    if (numbers && is_one_of(keyword, {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}))
      return std::min(one, other);
    if (keyword == "type") return common_types(one, other);
    if (keyword == "const") return Json::array();
    if (keyword == "items") return merge(one, other);
    if (lists && keyword == "enum") return common(one, other);
    if (lists && is_one_of(keyword, {"required", "allOf"})) return joined(one, other);
    return std::nullopt;
  }

  const FindReferred& find_;
  int& steps_left_;
  int depth_ = 0;
};

}  // namespace

std::optional<Json> merged(const Json& one, const Json& other, const FindReferred& find, int& steps_left) {
  return Merger(find, steps_left).merge(one, other);
}

}  // namespace quire::grammar
