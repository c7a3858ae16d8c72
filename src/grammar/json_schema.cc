#include "grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/in_quotes.h"
#include "base/refused.h"
#include "base/strict_json.h"
#include "grammar/json_apart.h"
#include "grammar/json_formats.h"
#include "grammar/json_members.h"
#include "grammar/json_merge.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_numbers.h"
#include "grammar/schema_object.h"

namespace quire::grammar {
namespace {

constexpr int64_t kMostKeys = 1000, kMostValues = 20'000;
constexpr size_t kMostMergedBytes = 1 << 20;  // of schemas that others were made one from

bool has_type(const Json& value, std::string_view type) {
  if (type == "integer") return is_whole(value);
  if (type == "number") return value.is_number();
  return type == value.type_name();  // nlohmann's names of the others are the schema's
}

class SchemaReader {
 public:
  SchemaReader(const Json& root, int most_depth, Places* unenforced)
      : root_(root), most_depth_(most_depth), unenforced_(unenforced), json_(rules_) {
    rules_.add();
  }

  Rules read() {
    referred_.emplace("#", 0);
    pending_.push_back({&root_, "#", 0});
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      Expression body = read(*next.schema, next.path);
      rules_[next.rule].body = std::move(body);
    }
    return std::move(rules_);
  }

 private:
  struct Pending {
    const Json* schema;
    std::string path;
    RuleId rule;
  };

  Expression read(const Json& schema, const std::string& path) {
    if (schema.is_boolean()) return schema.get<bool>() ? json_.value() : nothing();
    check_input(schema.is_object(), "the JSON schema: an object or a truth value is expected at ",
                in_quotes(path, 200));
    SchemaObject object(schema, path, unenforced_);
    Expression expression = read_form(object);
    object.check_all_taken();
    return expression;
  }

  Expression read_form(SchemaObject& schema) {
    if (const std::string* reference = schema.take_string("$ref")) return read_reference(*reference, schema);
    if (const Json* all = schema.take_array("allOf")) return read_all_of(*all, schema);
    if (const Json* any = schema.take_array("anyOf")) return read_alternatives(*any, "anyOf", schema);
    if (const Json* one = schema.take_array("oneOf")) return read_alternatives(*one, "oneOf", schema);
    if (schema.has("const") || schema.has("enum")) return read_fixed(schema);
    if (const Json* type = schema.take("type")) return read_types(*type, schema);
    return read_untyped(schema);
  }

  // Definitions are read from a list and not from here, so that a chain of them needs no deep stack.
  Expression read_reference(const std::string& reference, SchemaObject& schema) {
    const Json* target = find(reference);
    if (!target) {
      schema.leave_out("$ref", "\"$ref\": ", in_quotes(reference), " names nothing in #/$defs or #/definitions,");
      return json_.value();
    }
    const Json beside = schema.beside("$ref");
    const auto both = beside.empty() ? std::nullopt : merged(*target, beside, find_, merges_left_);
    if (!both) return read_later(reference, *target, reference);
    schema.take_all();
    return read_merged(*both, schema);
  }

  Expression read_later(const std::string& key, const Json& schema, const std::string& path) {
    const auto [known, is_new] = referred_.try_emplace(key, 0);
    if (is_new) {
      known->second = rules_.add();
      pending_.push_back({&schema, path, known->second});
    }
    return refer(known->second);
  }

  // Once for each that is the same, so that schemas that lead to themselves come to an end.
  Expression read_merged(const Json& both, SchemaObject& schema) {
    const std::string key = cat("merged ", written(both));
    if (!referred_.contains(key)) {
      merged_bytes_ += key.size();
      if (merged_bytes_ > kMostMergedBytes) schema.fail("schemas beside others come to too many,");
      merged_.push_back(both);
    }
    return read_later(key, merged_.back(), schema.path());
  }

  const Json* find(const std::string& reference) const {
    if (reference == "#") return &root_;
    for (const std::string section : {"$defs", "definitions"}) {
      const std::string prefix = cat("#/", section, "/");
      if (!reference.starts_with(prefix)) continue;
      const auto definitions = root_.find(section);
      if (definitions == root_.end() || !definitions->is_object()) return nullptr;
      const auto definition = definitions->find(reference.substr(prefix.size()));
      return definition == definitions->end() ? nullptr : &*definition;
    }
    return nullptr;
  }

  // "type" beside fixed values leaves those of that type.
  Expression read_fixed(SchemaObject& schema) {
    std::vector<Json> values;
    const Json *value = schema.take("const"), *list = schema.take_array("enum");
    if (list) values = list->get<std::vector<Json>>();
    if (value && (!list || std::find(values.begin(), values.end(), *value) != values.end())) values = {*value};
    const std::vector<std::string> types =
        schema.has("type") ? type_names(*schema.take("type"), schema) : std::vector<std::string>();
    std::vector<Expression> texts;
    for (const Json& fixed : values) {
      const auto fits = [&](const std::string& type) { return has_type(fixed, type); };
      if (types.empty() || std::any_of(types.begin(), types.end(), fits)) texts.push_back(text(written(fixed)));
    }
    if (texts.empty()) schema.fail("no value has the type,");
    return choice(std::move(texts));
  }

  // What stands beside the alternatives is said of each of them.
  Expression read_alternatives(const Json& schemas, const char* keyword, SchemaObject& schema) {
    const Json beside = schema.beside(keyword);
    std::vector<Json> each;
    for (const Json& one : schemas) {
      auto both = beside.empty() ? std::nullopt : merged(one, beside, find_, merges_left_);
      if (both) each.push_back(*std::move(both));
    }
    const bool together = each.size() == schemas.size();
    if (together)
      schema.take_all();
    else
      each = schemas.get<std::vector<Json>>();
    if (keyword == std::string_view("oneOf")) check_apart(each, schema);
    std::vector<Expression> alternatives;
    for (size_t i = 0; i < each.size(); ++i)
      alternatives.push_back(together ? read_merged(each[i], schema)
                                      : read(schemas[i], cat(schema.path(keyword), "/", i)));
    return choice(std::move(alternatives));
  }

  void check_apart(const std::vector<Json>& schemas, SchemaObject& schema) const {
    if (schemas.size() > kMostOneOf)
      return schema.leave_out("oneOf", "\"oneOf\" has more than ", kMostOneOf, " alternatives,");
    for (size_t i = 0; i < schemas.size(); ++i) {
      for (size_t j = i + 1; j < schemas.size(); ++j) {
        if (surely_apart(schemas[i], schemas[j], find_)) continue;
        return schema.leave_out("oneOf", "alternatives ", i, " and ", j,
                                " of \"oneOf\" do not surely exclude each other (\"anyOf\" need not),");
      }
    }
  }

  Expression read_all_of(const Json& schemas, SchemaObject& schema) {
    Json all = schema.beside("allOf");
    if (all.empty() && schemas.size() == 1) return read(schemas.front(), schema.path("allOf/0"));
    for (size_t i = 0; i < schemas.size(); ++i) {
      auto both = merged(all, schemas[i], find_, merges_left_);
      if (both)
        all = *std::move(both);
      else
        schema.leave_out(cat("allOf/", i), "\"allOf\" of schemas that cannot be made one is not supported,");
    }
    schema.take_all();
    return read_merged(all, schema);
  }

  static std::vector<std::string> type_names(const Json& type, const SchemaObject& schema) {
    if (type.is_string()) return {type.get<std::string>()};
    std::vector<std::string> names;
    if (!type.is_array() || type.empty()) schema.fail("\"type\" must be a name or a list of names");
    for (const Json& name : type) {
      if (!name.is_string()) schema.fail("\"type\" must be a name or a list of names");
      names.push_back(name.get<std::string>());
    }
    return names;
  }

  Expression read_types(const Json& type, SchemaObject& schema) {
    std::vector<Expression> alternatives;
    for (const std::string& name : type_names(type, schema)) alternatives.push_back(read_type(name, schema));
    return choice(std::move(alternatives));
  }

  Expression read_type(const std::string& name, SchemaObject& schema) {
    if (name == "object") return read_object(schema);
    if (name == "array") return read_array(schema);
    if (name == "string") return read_string(schema);
    if (name == "number") return read_number(schema);
    if (name == "integer") return read_integer(schema);
    if (name == "boolean") return choice({text("true"), text("false")});
    if (name == "null") return text("null");
    schema.fail("\"type\": ", in_quotes(name), " is no type,");
  }

  // Keywords speak of values of one type; of a schema without "type" we make values of that type.
  Expression read_untyped(SchemaObject& schema) {
    static const std::pair<const char*, const char*> kTypeOfKeyword[] = {
        {"properties", "object"},    {"required", "object"},         {"additionalProperties", "object"},
        {"propertyNames", "object"}, {"multipleOf", "number"},       {"uniqueItems", "array"},
        {"items", "array"},          {"prefixItems", "array"},       {"minItems", "array"},
        {"maxItems", "array"},       {"pattern", "string"},          {"format", "string"},
        {"minLength", "string"},     {"maxLength", "string"},        {"minimum", "number"},
        {"maximum", "number"},       {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
    };
    for (const auto& [keyword, type] : kTypeOfKeyword) {
      if (schema.has(keyword)) return read_type(type, schema);
    }
    return json_.value();
  }

  Expression read_string(SchemaObject& schema) {
    const std::optional<int32_t> least = schema.take_count("minLength"), most = schema.take_count("maxLength");
    const std::string *pattern = schema.take_string("pattern"), *format = schema.take_string("format");
    const auto pattern_alone = [&](bool is_format) {
      constexpr const char* kWhy = "\"pattern\", \"format\" and limits of length are not supported together,";
      if (least && !(is_format && *least <= 1)) schema.leave_out("minLength", kWhy);  // no format has an empty text
      if (most) schema.leave_out("maxLength", kWhy);
      if (format && !is_format) schema.leave_out("format", kWhy);
    };
    if (const auto value = pattern ? read_pattern(*pattern, schema) : std::nullopt) {
      pattern_alone(false);
      return json_.string_like(*value);
    }
    if (const char* regex = format ? format_regex(*format) : nullptr) {
      pattern_alone(true);
      return json_.string_like(read_regex(regex, most_depth_));
    }
    if (format) schema.leave_out("format", "\"format\": ", in_quotes(*format), " is not supported,");
    if (most && *most < least.value_or(0)) schema.fail("\"maxLength\" is less than \"minLength\"");
    return json_.string(least.value_or(0), most.value_or(kUnlimited));
  }

  std::optional<Expression> read_pattern(const std::string& pattern, SchemaObject& schema) const {
    try {
      return read_regex(pattern, most_depth_);
    } catch (const Refused& error) {
      schema.leave_out("pattern", "\"pattern\": ", error.what());
      return std::nullopt;
    }
  }

  Expression read_array(SchemaObject& schema) {
    std::vector<Expression> first;
    if (const Json* prefix = schema.take("prefixItems")) {
      if (!prefix->is_array()) schema.fail("\"prefixItems\" must be a list");
      for (size_t i = 0; i < prefix->size(); ++i) {
        first.push_back(refer(rules_.add(read((*prefix)[i], cat(schema.path("prefixItems"), "/", i)))));
      }
    }
    const Json* items = schema.take("items");
    const Expression item = items ? refer(rules_.add(read(*items, schema.path("items")))) : json_.value();
    if (const Json* unique = schema.take("uniqueItems"); unique && *unique != false) {
      schema.leave_out("uniqueItems", "\"uniqueItems\" is not supported,");
    }
    const int32_t least = schema.take_count("minItems").value_or(0);
    const int32_t most = schema.take_count("maxItems").value_or(kUnlimited);
    if (most != kUnlimited && most < least) schema.fail("\"maxItems\" is less than \"minItems\"");
    const bool closed = items && items->is_boolean() && !items->get<bool>();
    return json_list(rules_, json_, first, closed ? std::nullopt : std::optional(item), least, most);
  }

  Expression read_object(SchemaObject& schema) {
    const Json* listed = schema.take_object("properties");
    const Json* others = schema.take("additionalProperties");
    std::vector<std::string> required = take_required(schema);
    const Json* names = take_names(schema);
    bool has_others = others ? !(others->is_boolean() && !others->get<bool>()) : !listed || listed->empty();
    if (!listed && !others && !names && required.empty()) return json_.object();
    const Expression other =
        has_others && others ? read_shared(*others, schema.path("additionalProperties")) : json_.value();

    std::vector<JsonMember> properties;
    if (listed) {
      for (const auto& item : listed->items()) {
        const std::string& name = item.key();
        const Json& value = item.value();
        if (names && !allows_name(*names, name)) continue;
        const auto place = std::find(required.begin(), required.end(), name);
        properties.push_back(
            {name, read_shared(value, cat(schema.path("properties"), "/", name)), place != required.end()});
        if (place != required.end()) required.erase(place);
      }
    }
    for (const std::string& name : required) {
      if ((others && !has_others) || (names && !allows_name(*names, name)))
        schema.fail("\"required\" names ", in_quotes(name), ", which \"properties\" does not,");
      properties.push_back({name, other, true});
    }
    if (!names || !has_others) {
      return json_object(rules_, json_, properties, has_others ? std::optional(other) : std::nullopt);
    }
    if (fixed_names(*names)) {
      add_fixed_names(*names, other, properties);
      return json_object(rules_, json_, properties, std::nullopt);
    }
    if (properties.empty()) return json_object(rules_, json_, properties, other, read_key(*names, schema));
    schema.leave_out("propertyNames", "\"propertyNames\" is not supported beside other names,");
    return json_object(rules_, json_, properties, other);
  }

  // What names must be; null: any.
  const Json* take_names(SchemaObject& schema) const {
    const Json* names = schema.take("propertyNames");
    if (names && names->is_object() && names->contains("$ref") && names->at("$ref").is_string())
      names = find(names->at("$ref").get_ref<const std::string&>());
    if (!names || names->is_boolean() || SchemaObject(*names, "", nullptr).beside("type").empty()) return nullptr;
    return names;
  }

  static const Json* fixed_names(const Json& names) {
    const auto list = names.find("enum");
    return list != names.end() && list->is_array() ? &*list : nullptr;
  }

  static bool allows_name(const Json& names, const std::string& name) {
    const Json* fixed = fixed_names(names);
    return !fixed || std::find(fixed->begin(), fixed->end(), name) != fixed->end();
  }

  static void add_fixed_names(const Json& names, const Expression& value, std::vector<JsonMember>& members) {
    for (const Json& name : *fixed_names(names)) {
      const auto is_known = [&](const JsonMember& member) { return name == member.name; };
      if (name.is_string() && std::none_of(members.begin(), members.end(), is_known))
        members.push_back({name.get<std::string>(), value, false});
    }
  }

  Expression read_key(const Json& names, SchemaObject& schema) {
    const auto texts = merged(names, {{"type", "string"}}, find_, merges_left_);
    if (texts) return read(*texts, schema.path("propertyNames"));
    schema.leave_out("propertyNames", "\"propertyNames\" is not supported there,");
    return json_.string();
  }

  static std::vector<std::string> take_required(SchemaObject& schema) {
    std::vector<std::string> names;
    const Json* required = schema.take("required");
    if (!required) return names;
    if (!required->is_array()) schema.fail("\"required\" must be a list of names");
    std::set<std::string> known;
    for (const Json& name : *required) {
      if (!name.is_string()) schema.fail("\"required\" must be a list of names");
      if (known.insert(name.get<std::string>()).second) names.push_back(name.get<std::string>());
    }
    return names;
  }

  // A rule of its own for all but the shortest: it stands in two places.
  Expression read_shared(const Json& schema, const std::string& path) {
    Expression expression = read(schema, path);
    return expression.kind == Expression::Kind::rule ? expression : refer(rules_.add(std::move(expression)));
  }

  static constexpr size_t kMostOneOf = 32;

  const Json& root_;
  const int most_depth_;
  Places* const unenforced_;
  const FindReferred find_ = [this](const std::string& reference) { return find(reference); };
  Rules rules_;
  JsonRules json_;
  std::map<std::string, RuleId> referred_;
  std::vector<Pending> pending_;
  std::deque<Json> merged_;  // schemas that nobody wrote; they stay where they are
  size_t merged_bytes_ = 0;
  int merges_left_ = 2000;  // each copies schemas, and references let them double
};

}  // namespace

Rules read_json_schema(std::string_view source, int most_depth, Places* unenforced) {
  Json schema;
  try {
    schema = parse_strict_ordered_json(source, {.depth = most_depth, .keys = kMostKeys, .values = kMostValues});
  } catch (const JsonError& error) {
    throw Refused(cat("the JSON schema: ", error.what()));
  }
  return SchemaReader(schema, most_depth, unenforced).read();
}

Rules any_json_object() {
  Rules rules;
  rules.add();
  Expression object = JsonRules(rules).object();
  rules[0].body = std::move(object);
  return rules;
}

}  // namespace quire::grammar
