#include "grammar/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/check.h"
#include "grammar/testing_regex.h"

namespace quire::grammar {
namespace {

using nlohmann::json;

void want(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::vector<int32_t> allowed_tokens(const uint32_t* mask, int32_t vocabulary, bool wanted) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary; ++id) {
    if (allows(mask, id) == wanted) ids.push_back(id);
  }
  return ids;
}

int32_t any_of(const std::vector<int32_t>& ids, std::mt19937& random) { return ids[random() % ids.size()]; }

// Whatever closes something is drawn more often, so that walks end.
int32_t draw(const std::vector<int32_t>& allowed, const Tokens& tokens, std::mt19937& random) {
  if (random() % 4 == 0) {
    std::vector<int32_t> closing;
    for (const int32_t id : allowed) {
      const std::string& piece = tokens.pieces[id];
      if (piece.empty() || piece == "\"" || piece == "}" || piece == "]") closing.push_back(id);
    }
    if (!closing.empty()) return any_of(closing, random);
  }
  return any_of(allowed, random);
}

bool is_whole(const json& value) {
  return value.is_number_integer() ||
         (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>());
}

bool has_type(const json& value, const std::string& type) {
  if (type == "integer") return is_whole(value);
  return type == value.type_name();
}

size_t characters(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

void judge_type(const json& value, const json& type) {
  const json names = type.is_array() ? type : json::array({type});
  const bool fits = std::any_of(names.begin(), names.end(), [&](const json& name) { return has_type(value, name); });
  want(fits, "the type is not " + type.dump());
}

void judge_number(const json& value, const json& schema) {
  const double number = value.get<double>();
  if (schema.contains("minimum")) want(number >= schema["minimum"].get<double>(), "below the minimum");
  if (schema.contains("maximum")) want(number <= schema["maximum"].get<double>(), "above the maximum");
  if (schema.contains("exclusiveMinimum")) want(number > schema["exclusiveMinimum"].get<double>(), "at the minimum");
  if (schema.contains("exclusiveMaximum")) want(number < schema["exclusiveMaximum"].get<double>(), "at the maximum");
  if (schema.contains("multipleOf")) {
    const double rest = std::abs(std::remainder(number, schema["multipleOf"].get<double>()));
    want(rest <= std::abs(number) * 1e-12, "not a multiple");
  }
}

void judge_string(const std::string& value, const json& schema) {
  const size_t length = characters(value);
  if (schema.contains("minLength")) want(length >= schema["minLength"].get<size_t>(), "too short");
  if (schema.contains("maxLength")) want(length <= schema["maxLength"].get<size_t>(), "too long");
  if (schema.contains("pattern")) {
    want(RegexJudge(schema["pattern"].get<std::string>()).matches(value), "does not match the pattern");
  }
}

void judge_array(const json& value, const json& schema, const json& root) {
  if (schema.contains("minItems")) want(value.size() >= schema["minItems"].get<size_t>(), "too few items");
  if (schema.contains("maxItems")) want(value.size() <= schema["maxItems"].get<size_t>(), "too many items");
  const json prefix = schema.value("prefixItems", json::array());
  for (size_t i = 0; i < value.size(); ++i) {
    if (i < prefix.size()) {
      judge(value[i], prefix[i], root);
    } else if (schema.contains("items")) {
      judge(value[i], schema["items"], root);
    }
  }
}

void judge_object(const json& value, const json& schema, const json& root) {
  for (const auto& [name, member] : value.items())
    if (schema.contains("propertyNames")) judge(name, schema["propertyNames"], root);
  for (const auto& name : schema.value("required", json::array())) {
    want(value.contains(name.get<std::string>()), "a required member is missing: " + name.dump());
  }
  const json properties = schema.value("properties", json::object());
  for (const auto& [name, member] : value.items()) {
    if (properties.contains(name)) {
      judge(member, properties[name], root);
    } else if (schema.contains("additionalProperties")) {
      judge(member, schema["additionalProperties"], root);
    }
  }
}

int count_satisfied(const json& value, const json& schemas, const json& root) {
  return static_cast<int>(std::count_if(schemas.begin(), schemas.end(), [&](const json& schema) {
    try {
      judge(value, schema, root);
      return true;
    } catch (const std::runtime_error&) {
      return false;
    }
  }));
}

}  // namespace

Tokens byte_tokens() {
  Tokens tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.pieces.push_back(std::string(1, static_cast<char>(byte)));
  tokens.pieces.push_back("");  // kEndId
  tokens.pieces.push_back("");  // kNoTextId
  for (const char* piece :
       {"\"}", "{\"", "\":", "\",", "ab", "abc", "12", "3.5", "true", "},\n", "  ", "\\u00", "é", "日本", "\xE6\x97"}) {
    tokens.pieces.push_back(piece);
  }
  tokens.end_ids = {kEndId};
  return tokens;
}

bool allows(const uint32_t* mask, int32_t token) { return !mask || (mask[token / 32] >> (token % 32) & 1); }

const Compiler& byte_compiler() {
  static const Compiler compiler(byte_tokens());
  return compiler;
}

Walk walk(engine::TokenMask& mask, const Tokens& tokens, std::mt19937& random, int most) {
  const auto vocabulary = static_cast<int32_t>(tokens.pieces.size());
  Walk walk{.text = {}, .ended = false};
  for (int i = 0; i < most && !walk.ended; ++i) {
    const uint32_t* bits = mask.next();
    const std::vector<int32_t> allowed = allowed_tokens(bits, vocabulary, true);
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing is allowed after " << walk.text;
      break;
    }
    if (const auto refused = allowed_tokens(bits, vocabulary, false); !refused.empty() && random() % 4 == 0) {
      EXPECT_THROW(mask.accept(any_of(refused, random)), CheckError) << walk.text;
    }
    const int32_t token = draw(allowed, tokens, random);
    EXPECT_NO_THROW(mask.accept(token)) << walk.text;
    walk.text += tokens.pieces[token];
    walk.ended = std::find(tokens.end_ids.begin(), tokens.end_ids.end(), token) != tokens.end_ids.end();
  }
  return walk;
}

bool takes(const Compiler& compiler, const Source& source, const std::string& text) {
  const auto mask = compiler.mask(compiler.compile(source));
  for (const char byte : text) {
    const auto token = static_cast<int32_t>(static_cast<unsigned char>(byte));
    if (!allows(mask->next(), token)) return false;
    mask->accept(token);
  }
  return allows(mask->next(), kEndId);
}

void judge(const json& value, const json& schema, const json& root) {
  if (schema.is_boolean()) return want(schema.get<bool>(), "nothing is right here");
  if (schema.contains("$ref")) {
    const std::string reference = schema["$ref"];
    judge(value, reference == "#" ? root : root.at(json::json_pointer(reference.substr(1))), root);
  }
  if (schema.contains("type")) judge_type(value, schema["type"]);
  if (schema.contains("const")) want(value == schema["const"], "not the constant");
  if (schema.contains("enum")) {
    want(std::find(schema["enum"].begin(), schema["enum"].end(), value) != schema["enum"].end(), "not in the list");
  }
  if (schema.contains("anyOf")) want(count_satisfied(value, schema["anyOf"], root) > 0, "none of anyOf");
  if (schema.contains("oneOf")) want(count_satisfied(value, schema["oneOf"], root) == 1, "not one of oneOf");
  for (const auto& part : schema.value("allOf", json::array())) judge(value, part, root);
  if (value.is_number()) judge_number(value, schema);
  if (value.is_string()) judge_string(value, schema);
  if (value.is_array()) judge_array(value, schema, root);
  if (value.is_object()) judge_object(value, schema, root);
}

}  // namespace quire::grammar
