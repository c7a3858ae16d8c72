#include "serve/tool_grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSections[] = {"$defs", "definitions"};  // of a schema, that references lead into

// Where a reference leads once its schema is part of a larger one, whose $defs hold the schema's own under its name.
std::string moved_reference(const std::string& reference, const std::string& name) {
  if (reference == "#") return cat("#/$defs/", name);
  for (const char* section : kSections) {
    const std::string prefix = cat("#/", section, "/");
    if (reference.starts_with(prefix)) return cat("#/$defs/", name, ".", reference.substr(prefix.size()));
  }
  return reference;
}

// True if the schema refers to itself as a whole.
bool move_references(ordered_json& schema, const std::string& name) {
  if (!schema.is_structured()) return false;
  bool to_root = false;
  for (auto& [key, part] : schema.items()) {
    if (schema.is_object() && key == "$ref" && part.is_string()) {
      to_root |= part == "#";
      part = moved_reference(part.get_ref<const std::string&>(), name);
    } else {
      to_root |= move_references(part, name);
    }
  }
  return to_root;
}

// The schema as a part of a larger one; what others refer to in it goes into `definitions`.
ordered_json as_part(ordered_json schema, const std::string& name, ordered_json& definitions) {
  const bool to_root = move_references(schema, name);
  for (const char* section : kSections) {
    if (!schema.contains(section) || !schema[section].is_object()) continue;
    for (auto& [key, part] : schema[section].items()) definitions[cat(name, ".", key)] = std::move(part);
    schema.erase(section);
  }
  if (!to_root) return schema;
  definitions[name] = std::move(schema);
  return {{"$ref", cat("#/$defs/", name)}};
}

bool is_loose(const ToolFunction& function) { return !function.strict; }

std::string schema_text(const ordered_json& schema) {
  return schema.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void note_unenforced(const ToolFunction& function, grammar::CallGrammars& grammars, Ignored& ignored) {
  const grammar::Source parameters{grammar::Kind::json_schema, schema_text(function.parameters), !function.strict};
  for (const std::string& place : grammars.unenforced(parameters))
    ignored.add(cat("tools[].function.parameters", place));
}

void check_enforceable(const ToolFunction& function, grammar::CallGrammars& grammars) {
  try {
    grammars.compile({grammar::Kind::json_schema, schema_text(function.parameters)});
  } catch (const Refused& error) {
    refuse("tools", cat(in_quotes(function.name, 60), ": ", error.what()));
  }
}

ordered_json schema_of_call(const ToolFunction& function, ordered_json parameters, std::string_view arguments_key) {
  ordered_json properties = {{"name", {{"const", function.name}}}};
  properties[std::string(arguments_key)] = std::move(parameters);
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", {"name", std::string(arguments_key)}},
          {"additionalProperties", false}};
}

}  // namespace

grammar::Source tool_grammar(const std::vector<ToolFunction>& functions, bool only_one,
                             std::string_view arguments_key) {
  ordered_json calls = ordered_json::array(), definitions = ordered_json::object();
  for (size_t i = 0; i < functions.size(); ++i) {
    ordered_json parameters = as_part(functions[i].parameters, cat("tool", i), definitions);
    calls.push_back(schema_of_call(functions[i], std::move(parameters), arguments_key));
  }
  ordered_json call = calls.size() == 1 ? std::move(calls[0]) : ordered_json{{"anyOf", std::move(calls)}};
  ordered_json schema =
      only_one ? std::move(call) : ordered_json{{"type", "array"}, {"items", std::move(call)}, {"minItems", 1}};
  if (!definitions.empty()) schema["$defs"] = std::move(definitions);
  const bool loose = std::any_of(functions.begin(), functions.end(), is_loose);
  return {grammar::Kind::json_schema, schema_text(schema), loose};
}

grammar::Source loose_tool_grammar(std::vector<ToolFunction> functions, bool only_one, std::string_view arguments_key) {
  for (ToolFunction& function : functions)
    if (!function.strict) function.parameters = {{"type", "object"}, {"additionalProperties", true}};
  return tool_grammar(functions, only_one, arguments_key);
}

grammar::Source enforceable_tool_grammar(const std::vector<ToolFunction>& functions, bool only_one,
                                         std::string_view arguments_key, grammar::CallGrammars& grammars,
                                         Ignored& ignored) {
  for (const ToolFunction& function : functions)
    if (function.strict) check_enforceable(function, grammars);
  grammar::Source source = tool_grammar(functions, only_one, arguments_key);
  if (!source.loose) return source;
  try {
    grammars.compile(source);
    for (const ToolFunction& function : functions) note_unenforced(function, grammars, ignored);
    return source;
  } catch (const Refused&) {
    ignored.add("tools[].function.parameters");
    return loose_tool_grammar(functions, only_one, arguments_key);
  }
}

}  // namespace quire::serve
