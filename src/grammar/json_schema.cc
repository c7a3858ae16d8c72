#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/in_quotes.h"
#include "base/strict_json.h"
#include "grammar/json_apart.h"
#include "grammar/json_formats.h"
#include "grammar/json_members.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_numbers.h"
#include "grammar/schema_object.h"

namespace quire::grammar {
namespace {

constexpr int64_t kMostKeys = 1000, kMostValues = 20'000;

bool has_type(const Json& value, std::string_view type) {
  if (type == "integer") return is_whole(value);
  if (type == "number") return value.is_number();
  return type == value.type_name();  // nlohmann's names of the others are the schema's
}

class SchemaReader {
 public:
  SchemaReader(const Json& root, int most_depth) : root_(root), most_depth_(most_depth), json_(rules_) { rules_.add(); }

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
    check(schema.is_object(), "the JSON schema: an object or a truth value is expected at ", in_quotes(path, 200));
    SchemaObject object(schema, path);
    Expression expression = read_form(object);
    object.check_all_taken();
    return expression;
  }

  Expression read_form(SchemaObject& schema) {
    if (const std::string* reference = schema.take_string("$ref")) return read_reference(*reference, schema);
    if (schema.has("const") || schema.has("enum")) return read_fixed(schema);
    if (const Json* any = schema.take_array("anyOf")) return read_alternatives(*any, schema.path("anyOf"));
    if (const Json* one = schema.take_array("oneOf")) return read_one_of(*one, schema);
    if (const Json* all = schema.take_array("allOf")) return read_all_of(*all, schema);
    if (const Json* type = schema.take("type")) return read_types(*type, schema);
    return read_untyped(schema);
  }

  // Definitions are read from a list and not from here, so that a chain of them needs no deep stack.
  Expression read_reference(const std::string& reference, SchemaObject& schema) {
    const Json* target = find(reference);
    if (!target) schema.fail("\"$ref\": ", in_quotes(reference), " names nothing in #/$defs or #/definitions,");
    const auto [known, is_new] = referred_.try_emplace(reference, 0);
    if (is_new) {
      known->second = rules_.add();
      pending_.push_back({target, reference, known->second});
    }
    return refer(known->second);
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
    if (const Json* value = schema.take("const")) values.push_back(*value);
    if (const Json* listed = schema.take_array("enum")) {
      if (!values.empty()) schema.fail("\"enum\" is not supported beside \"const\",");
      values = listed->get<std::vector<Json>>();
    }
    const std::vector<std::string> types =
        schema.has("type") ? type_names(*schema.take("type"), schema) : std::vector<std::string>();
    std::vector<Expression> texts;
    for (const Json& value : values) {
      const auto fits = [&](const std::string& type) { return has_type(value, type); };
      if (types.empty() || std::any_of(types.begin(), types.end(), fits)) texts.push_back(text(written(value)));
    }
    if (texts.empty()) schema.fail("no value has the type,");
    return choice(std::move(texts));
  }

  Expression read_alternatives(const Json& schemas, const std::string& path) {
    std::vector<Expression> alternatives;
    for (size_t i = 0; i < schemas.size(); ++i) alternatives.push_back(read(schemas[i], cat(path, "/", i)));
    return choice(std::move(alternatives));
  }

  Expression read_one_of(const Json& schemas, SchemaObject& schema) {
    const auto find_referred = [this](const std::string& reference) { return find(reference); };
    if (schemas.size() > kMostOneOf) schema.fail("\"oneOf\" has more than ", kMostOneOf, " alternatives,");
    for (size_t i = 0; i < schemas.size(); ++i) {
      for (size_t j = i + 1; j < schemas.size(); ++j) {
        if (surely_apart(schemas[i], schemas[j], find_referred)) continue;
        schema.fail("alternatives ", i, " and ", j,
                    " of \"oneOf\" do not surely exclude each other (\"anyOf\" need not),");
      }
    }
    return read_alternatives(schemas, schema.path("oneOf"));
  }

  Expression read_all_of(const Json& schemas, SchemaObject& schema) {
    if (schemas.size() > 1) schema.fail("\"allOf\" of more than one schema is not supported,");
    return read(schemas.front(), schema.path("allOf/0"));
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
        {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
        {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
        {"maxItems", "array"},    {"pattern", "string"},          {"format", "string"},
        {"minLength", "string"},  {"maxLength", "string"},        {"minimum", "number"},
        {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"},
    };
    for (const auto& [keyword, type] : kTypeOfKeyword) {
      if (schema.has(keyword)) return read_type(type, schema);
    }
    return json_.value();
  }

  Expression read_string(SchemaObject& schema) {
    const std::optional<int32_t> least = schema.take_count("minLength"), most = schema.take_count("maxLength");
    const std::string* pattern = schema.take_string("pattern");
    const std::string* format = schema.take_string("format");
    if (pattern || format) {
      if (least || most || (pattern && format)) {
        schema.fail("\"pattern\", \"format\" and limits of length are not supported together,");
      }
      return json_.string_like(read_pattern(pattern, format, schema));
    }
    if (most && *most < least.value_or(0)) schema.fail("\"maxLength\" is less than \"minLength\"");
    return json_.string(least.value_or(0), most.value_or(kUnlimited));
  }

  Expression read_pattern(const std::string* pattern, const std::string* format, const SchemaObject& schema) const {
    const char* regex = pattern ? pattern->c_str() : format_regex(*format);
    if (!regex) schema.fail("\"format\": ", in_quotes(*format), " is not supported,");
    try {
      return read_regex(pattern ? std::string_view(*pattern) : regex, most_depth_);
    } catch (const CheckError& error) {
      schema.fail("\"pattern\": ", error.what());
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
      schema.fail("\"uniqueItems\" is not supported,");
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
    const bool has_others = others ? !(others->is_boolean() && !others->get<bool>()) : !listed || listed->empty();
    if (!listed && !others && required.empty()) return json_.object();
    const Expression other =
        has_others && others ? read_shared(*others, schema.path("additionalProperties")) : json_.value();

    std::vector<JsonMember> properties;
    if (listed) {
      for (const auto& item : listed->items()) {
        const std::string& name = item.key();
        const Json& value = item.value();
        const auto place = std::find(required.begin(), required.end(), name);
        properties.push_back(
            {name, read_shared(value, cat(schema.path("properties"), "/", name)), place != required.end()});
        if (place != required.end()) required.erase(place);
      }
    }
    for (const std::string& name : required) {
      if (others && !has_others)
        schema.fail("\"required\" names ", in_quotes(name), ", which \"properties\" does not,");
      properties.push_back({name, other, true});
    }
    return json_object(rules_, json_, properties, has_others ? std::optional(other) : std::nullopt);
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
  Rules rules_;
  JsonRules json_;
  std::map<std::string, RuleId> referred_;
  std::vector<Pending> pending_;
};

}  // namespace

Rules read_json_schema(std::string_view source, int most_depth) {
  Json schema;
  try {
    schema = parse_strict_ordered_json(source, {.depth = most_depth, .keys = kMostKeys, .values = kMostValues});
  } catch (const CheckError& error) {
    throw CheckError(cat("the JSON schema: ", error.what()));
  }
  return SchemaReader(schema, most_depth).read();
}

Rules any_json_object() {
  Rules rules;
  rules.add();
  Expression object = JsonRules(rules).object();
  rules[0].body = std::move(object);
  return rules;
}

}  // namespace quire::grammar
