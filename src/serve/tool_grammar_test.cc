#include "serve/tool_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

ToolFunction function(const char* name, const char* parameters, bool strict = false) {
  return {name, ordered_json::parse(parameters), strict};
}

const char* const kNumber = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
const char* const kTree = R"({"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}},
    "required": ["root"], "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}}})";

ordered_json schema_of(const grammar::Source& source) {
  EXPECT_EQ(source.kind, grammar::Kind::json_schema);
  return ordered_json::parse(source.text);
}

TEST(ToolGrammar, OneObjectOrAnArray) {
  const ordered_json one = schema_of(tool_grammar({function("add", kNumber)}, true, "arguments"));
  EXPECT_EQ(one, ordered_json::parse(R"({"type": "object", "properties": {"name": {"const": "add"},
      "arguments": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
      "required": ["name", "arguments"], "additionalProperties": false})"));
  const ordered_json list =
      schema_of(tool_grammar({function("add", kNumber), function("sub", kNumber)}, false, "parameters"));
  EXPECT_EQ(list["type"], "array");
  EXPECT_EQ(list["minItems"], 1);
  EXPECT_EQ(list["items"]["anyOf"].size(), 2u);
  EXPECT_EQ(list["items"]["anyOf"][1]["properties"]["name"]["const"], "sub");
  EXPECT_TRUE(list["items"]["anyOf"][1]["properties"].contains("parameters"));
}

TEST(ToolGrammar, ReferencesMoveAlong) {
  const ordered_json schema =
      schema_of(tool_grammar({function("add", kNumber), function("walk", kTree)}, false, "arguments"));
  const ordered_json& walk = schema["items"]["anyOf"][1]["properties"]["arguments"];
  EXPECT_EQ(walk["properties"]["root"]["$ref"], "#/$defs/tool1.node");
  EXPECT_FALSE(walk.contains("$defs"));
  EXPECT_EQ(schema["$defs"].size(), 1u);
  EXPECT_EQ(schema["$defs"]["tool1.node"]["properties"]["next"]["anyOf"][0]["$ref"], "#/$defs/tool1.node");

  const char* const self = R"({"type": "object", "properties": {"next": {"$ref": "#"}}})";
  const ordered_json list = schema_of(tool_grammar({function("list", self)}, true, "arguments"));
  EXPECT_EQ(list["properties"]["arguments"]["$ref"], "#/$defs/tool0");
  EXPECT_EQ(list["$defs"]["tool0"]["properties"]["next"]["$ref"], "#/$defs/tool0");
}

class CompiledToolGrammar : public ::testing::Test {
 protected:
  // Whether the text is one that the grammar allows from its first byte to its end.
  bool allows(const grammar::Source& source, const std::string& text) {
    const auto mask = compiler().mask(compiler().compile(source));
    const auto allowed = [&](int32_t token) {
      const uint32_t* bits = mask->next();
      return bits == nullptr || (bits[token / 32] >> (token % 32) & 1) != 0;
    };
    for (const char byte : text) {
      const auto token = static_cast<int32_t>(static_cast<uint8_t>(byte));
      if (!allowed(token)) return false;
      mask->accept(token);
    }
    return allowed(testing::kEnd);
  }
  const grammar::Compiler& compiler() { return tiny_.service().grammars(); }

  testing::TinyService tiny_{{.loop = false}};
  grammar::CallGrammars grammars_{compiler()};
  Ignored ignored_;
};

TEST_F(CompiledToolGrammar, AllowsCallsAndNothingElse) {
  const std::vector<ToolFunction> functions = {function("add", kNumber), function("walk", kTree)};
  const grammar::Source many = enforceable_tool_grammar(functions, false, "arguments", grammars_, ignored_);
  EXPECT_EQ(many, tool_grammar(functions, false, "arguments"));
  EXPECT_TRUE(allows(many, R"([{"name": "add", "arguments": {"a": 1}}])"));
  EXPECT_TRUE(allows(many, R"([{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": -20}}])"));
  EXPECT_TRUE(
      allows(many, R"([{"name": "walk", "arguments": {"root": {"value": 1, "next": {"value": 2, "next": null}}}}])"));
  EXPECT_FALSE(allows(many, "[]"));
  EXPECT_FALSE(allows(many, R"([{"name": "sub", "arguments": {"a": 1}}])"));
  EXPECT_FALSE(allows(many, R"([{"name": "add", "arguments": {"a": "1"}}])"));
  EXPECT_FALSE(allows(many, R"({"name": "add", "arguments": {"a": 1}})"));

  const grammar::Source one = enforceable_tool_grammar({functions[0]}, true, "parameters", grammars_, ignored_);
  EXPECT_TRUE(allows(one, R"({"name": "add", "parameters": {"a": 1}})"));
  EXPECT_FALSE(allows(one, R"({"name": "add", "arguments": {"a": 1}})"));
}

TEST_F(CompiledToolGrammar, WhatCannotBeEnforcedIsLooseUnlessStrict) {
  const char* const odd = R"({"type": "object", "properties": {"a": {"not": {"type": "integer"}}}})";
  const grammar::Source loose = enforceable_tool_grammar({function("f", odd), function("add", kNumber, true)}, true,
                                                         "arguments", grammars_, ignored_);
  EXPECT_EQ(ignored_.header(), "tools[].function.parameters#/properties/a/not");
  EXPECT_TRUE(allows(loose, R"({"name": "f", "arguments": {"a": [true]}})"));
  EXPECT_FALSE(allows(loose, R"({"name": "f", "arguments": {"b": 1}})")) << "the rest is kept to";
  EXPECT_FALSE(allows(loose, R"({"name": "add", "arguments": {"b": 1}})"));
  const auto strictly = [&] {
    enforceable_tool_grammar({function("f", odd, true)}, true, "arguments", grammars_, ignored_);
  };
  testing::expect_api_error(strictly, 400, "tools", "\"not\" is not supported");
  ToolFunction huge = function("f", kNumber);
  huge.parameters["description"] = std::string(70'000, 'x');
  const grammar::Source any = enforceable_tool_grammar({huge}, true, "arguments", grammars_, ignored_);
  EXPECT_TRUE(allows(any, R"({"name": "f", "arguments": {"b": 1}})"));
  EXPECT_TRUE(ignored_.header().ends_with(", tools[].function.parameters")) << ignored_.header();
}

}  // namespace
}  // namespace quire::serve
