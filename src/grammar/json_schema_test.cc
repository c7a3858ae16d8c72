#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "grammar/compiler.h"
#include "grammar/testing.h"

namespace quire::grammar {
namespace {

using nlohmann::json;

bool schema_takes(const std::string& schema, const std::string& text) {
  return takes(byte_compiler(), {Kind::json_schema, schema}, text);
}

std::string error_of(const std::string& schema) {
  try {
    byte_compiler().compile({Kind::json_schema, schema});
  } catch (const CheckError& error) {
    return error.what();
  }
  return "";
}

class Schemas : public testing::TestWithParam<const char*> {};

TEST_P(Schemas, WhatTheMasksAllowSatisfiesThem) {
  const Tokens tokens = byte_tokens();
  const json schema = json::parse(GetParam());
  const auto compiled = byte_compiler().compile({Kind::json_schema, GetParam()});
  std::mt19937 random(7);
  int ended = 0;
  for (int i = 0; i < 60; ++i) {
    const Walk walked = walk(*byte_compiler().mask(compiled), tokens, random);
    if (!walked.ended) continue;
    ++ended;
    ASSERT_TRUE(json::accept(walked.text)) << walked.text;
    ASSERT_NO_THROW(judge(json::parse(walked.text), schema, schema)) << walked.text;
  }
  EXPECT_GE(ended, 10) << "walks end too rarely to show much";
}

INSTANTIATE_TEST_SUITE_P(
    Features, Schemas,
    testing::Values(
        R"({"type":"string"})", R"({"type":"integer"})", R"({"type":"number"})", R"({"type":"boolean"})",
        R"({"type":"null"})", R"({"type":"array"})", R"({"type":"object"})", R"({})", R"({"type":["string","null"]})",
        R"({"type":"string","minLength":2,"maxLength":5})", R"({"type":"string","minLength":3})",
        R"({"type":"string","maxLength":40})", R"({"type":"string","minLength":34,"maxLength":60})",
        R"({"type":"string","minLength":40})", R"({"type":"string","maxLength":0})",
        R"({"type":"string","pattern":"^[A-Z]{2}-[0-9]+$"})", R"({"type":"string","pattern":"a\"b|c\\\\d|[\\n\\t]x"})",
        R"({"type":"integer","minimum":-17,"maximum":1234})", R"({"type":"integer","minimum":100})",
        R"({"type":"integer","exclusiveMaximum":-5})", R"({"type":"integer","exclusiveMinimum":9,"maximum":10})",
        R"({"type":"integer","minimum":1.5,"maximum":3.5})", R"({"type":"integer","minimum":-9223372036854775808})",
        R"({"type":"number","minimum":0,"maximum":1})", R"({"type":"number","minimum":-1.25,"exclusiveMaximum":2.5})",
        R"({"type":"number","exclusiveMinimum":0})", R"({"type":"number","maximum":-0.5})",
        R"({"type":"number","exclusiveMinimum":0.1,"exclusiveMaximum":0.12})", R"({"type":"number","maximum":1e300})",
        R"({"enum":["a","b",1,null,{"x":[1,2]},"\u0000\n\""]})", R"({"const":{"a":"b"}})",
        R"({"type":"string","enum":["a",1,"b"]})",
        R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":4})",
        R"({"type":"array","items":{"type":"boolean"},"maxItems":0})",
        R"({"type":"array","items":{"type":"null"},"minItems":200})",
        R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"}})",
        R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"},{"const":1}],"items":false,"minItems":2})",
        R"({"type":"array","prefixItems":[{"type":"integer"}],"minItems":3,"maxItems":5,"items":{"type":"null"}})",
        R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"null"}],"maxItems":1})",
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"},)"
        R"("c":{"enum":[1,2]}},"required":["b"]})",
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["a",)"
        R"("b"],"additionalProperties":false})",
        R"({"type":"object","properties":{"a":{"type":"integer"},"ab":{"type":"null"},)"
        R"("":{"type":"null"}},"additionalProperties":{"type":"boolean"}})",
        R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a","z"],)"
        R"("additionalProperties":{"type":"boolean"}})",
        R"({"type":"object","properties":{"é":{"type":"integer"},"a\"b":{"const":2}},"required":["é"],)"
        R"("additionalProperties":{"type":"null"}})",
        R"({"type":"object","additionalProperties":{"type":"integer"}})",
        R"({"type":"object","additionalProperties":false})", R"({"type":"object","required":["k"]})",
        R"({"properties":{"a":{"items":{"minimum":3}}}})",
        R"({"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"type":"null"}},"required":["a"]}]})",
        R"({"oneOf":[{"type":"integer"},{"type":"string"},{"const":null},{"type":"boolean"}]})",
        R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],"discriminator":{"propertyName":"kind"},"$defs":{
            "cat":{"type":"object","properties":{"kind":{"const":"cat"},"age":{"type":"integer"}},"required":["kind"]},
            "dog":{"type":"object","properties":{"kind":{"enum":["dog","wolf"]}},"required":["kind"]}}})",
        R"({"allOf":[{"$ref":"#/definitions/a"}],"description":"x","definitions":{"a":{"type":"integer"}}})",
        // What stands beside other schemas.
        R"({"anyOf":[{"type":"null"},{"const":3}],"type":["null","integer"],"title":"t"})",
        R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},"additionalProperties":false,)"
        R"("anyOf":[{"required":["a"]},{"required":["b"]}]})",
        R"({"$ref":"#/$defs/a","minimum":1,"$defs":{"a":{"type":"integer","maximum":12,"minimum":-4}}})",
        R"({"allOf":[{"$ref":"#/$defs/a"},{"type":"object","properties":{"b":{"type":"null"}},"required":["b"]}],)"
        R"("properties":{"a":{"minimum":0}},"$defs":{"a":{"type":"object","properties":{"a":{"type":"integer"}},)"
        R"("required":["a"]}}})",
        R"({"type":"object","required":["kind"],"oneOf":[{"properties":{"kind":{"const":"a"}}},)"
        R"({"properties":{"kind":{"enum":["b","c"]},"n":{"type":"integer"}}}]})",
        R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n",)"
        R"("required":["next"]},{"type":"null"}]}}}}})",
        R"({"enum":[1,2,3],"const":2})", R"({"type":"integer","multipleOf":5})", R"({"type":"integer","multipleOf":8})",
        R"({"type":"integer","multipleOf":7,"minimum":-20,"exclusiveMaximum":49})",
        R"({"type":"number","multipleOf":25})", R"({"type":"number","multipleOf":0.01})",
        R"({"type":"integer","multipleOf":0.5,"maximum":3,"minimum":0})",
        R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"integer"}})",
        R"({"type":"object","propertyNames":{"pattern":"^[a-c]{1,2}$"},"additionalProperties":{"type":"integer"}})",
        R"({"type":"object","propertyNames":{"enum":["x","y"]},"additionalProperties":{"type":"null"},"required":["y"]})",
        R"({"type":"string","format":"uuid","minLength":1})",
        R"({"type":"object","properties":{"name":{"type":"integer"},"children":{"type":"array",)"
        R"("items":{"$ref":"#"}}},"required":["name"]})",
        R"({"$ref":"#/$defs/tree","$defs":{"tree":{"anyOf":[{"type":"null"},{"type":"array",)"
        R"("items":{"$ref":"#/$defs/tree"},"maxItems":2}]}}})",
        // Names of properties that are keywords elsewhere.
        R"({"type":"object","properties":{"title":{"type":"integer"},"default":{"type":"object",)"
        R"("properties":{"title":{"type":"null"}},"required":["title"]}},"required":["title","default"]})"));

TEST(JsonSchema, FormatsAreEnforced) {
  const std::pair<const char*, std::vector<const char*>> right[] = {
      {"date", {"2024-12-31", "1999-02-28"}},
      {"time", {"23:59:59Z", "00:00:00.123+05:30"}},
      {"date-time", {"2024-01-31T12:00:00Z"}},
      {"duration", {"P3D", "PT5M", "P1Y2M3D", "P1DT2H"}},
      {"email", {"a.b+c@example.org"}},
      {"hostname", {"example.org", "a"}},
      {"ipv4", {"192.168.0.1", "255.255.255.255", "0.0.0.0"}},
      {"ipv6", {"::1", "2001:db8::1", "1:2:3:4:5:6:7:8", "::"}},
      {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}},
      {"uri", {"https://example.org/a/b?c=d#e", "mailto:", "http://localhost:8080"}}};
  for (const auto& [format, texts] : right) {
    const std::string schema = cat(R"({"type":"string","format":")", format, "\"}");
    for (const char* text : texts) EXPECT_TRUE(schema_takes(schema, cat("\"", text, "\""))) << text;
    for (const char* text : {"", " ", "2024-02-30_", "24:00:00Z", "256.1.1.1.", "a@", "1:2", "-a", "P-"}) {
      EXPECT_FALSE(schema_takes(schema, cat("\"", text, "\""))) << format << " " << text;
    }
  }
}

TEST(JsonSchema, BoundsAreExact) {
  const std::string schema = R"({"type":"integer","minimum":-105,"maximum":2099})";
  for (int i = -1200; i <= 12000; i += i > -130 && i < 130 ? 1 : 7) {
    ASSERT_EQ(schema_takes(schema, std::to_string(i)), i >= -105 && i <= 2099) << i;
  }
  const std::string numbers = R"({"type":"number","exclusiveMinimum":-0.35,"maximum":12.05})";
  for (const auto& [text, right] : std::vector<std::pair<const char*, bool>>{{"-0.35", false},
                                                                             {"-0.349", true},
                                                                             {"-0.3500", false},
                                                                             {"-0.4", false},
                                                                             {"-0.1", true},
                                                                             {"0", true},
                                                                             {"0.0", true},
                                                                             {"12", true},
                                                                             {"12.05", true},
                                                                             {"12.0500", true},
                                                                             {"12.051", false},
                                                                             {"12.06", false},
                                                                             {"12.04999", true},
                                                                             {"13", false},
                                                                             {"7.999", true},
                                                                             {"-1", false},
                                                                             {"012", false},
                                                                             {"1e0", false}}) {
    EXPECT_EQ(schema_takes(numbers, text), right) << text;
  }
}

TEST(JsonSchema, AdditionalMembersHaveOtherNames) {
  const std::string schema = R"({"properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})";
  for (const char* text : {R"({"ab":null,"a":1})", R"({"abc":1})", R"({"":1})", R"({"b\u0061":1})", R"({"ab":null})"}) {
    EXPECT_TRUE(schema_takes(schema, text)) << text;
  }
  for (const char* text : {R"({"ab":1})", R"({"a\u0062":1})", R"({"\u0061b":1})", R"({"a":1,"ab":null})"}) {
    EXPECT_FALSE(schema_takes(schema, text)) << text;
  }
}

TEST(JsonSchema, WhatIsNotEnforcedIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {R"({"type":"array","uniqueItems":true})", R"("uniqueItems" is not supported, at "#")"},
      {R"({"type":"object","properties":{"a":{"type":"array","contains":{}}}})",
       R"("contains" is not supported there, at "#/properties/a")"},
      {R"({"not":{}})", R"("not" is not supported there, at "#")"},
      {R"({"if":{},"then":{}})", R"("if" is not supported there, at "#")"},
      {R"({"type":"object","patternProperties":{}})", R"("patternProperties" is not supported there, at "#")"},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":true,"propertyNames":{"maxLength":2}})",
       R"("propertyNames" is not supported beside other names, at "#")"},
      {R"({"type":"object","minProperties":1})", R"("minProperties" is not supported there, at "#")"},
      {R"({"type":"object","dependentRequired":{}})", R"("dependentRequired" is not supported there, at "#")"},
      {R"({"type":"object","unevaluatedProperties":false})",
       R"("unevaluatedProperties" is not supported there, at "#")"},
      {R"({"type":"number","multipleOf":0.3})", R"("multipleOf" is not supported there, at "#")"},
      {R"({"type":"integer","multipleOf":3})", R"("multipleOf" is not supported there, at "#")"},
      {R"({"type":"integer","multipleOf":3,"minimum":0,"maximum":100000})",
       R"("multipleOf" is not supported there, at "#")"},
      {R"({"type":"integer","minLength":2})", R"("minLength" is not supported there, at "#")"},
      {R"({"$ref":"#/$defs/a","pattern":"a","$defs":{"a":{"pattern":"b"}}})",
       R"("pattern" is not supported there, at "#")"},
      {R"({"anyOf":[{"format":"date"}],"format":"time"})", R"("format" is not supported there, at "#")"},
      {R"({"const":1,"minimum":2})", R"("minimum" is not supported there, at "#")"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})",
       R"("allOf" of schemas that cannot be made one is not supported, at "#")"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       R"x(alternatives 0 and 1 of "oneOf" do not surely exclude each other ("anyOf" need not), at "#")x"},
      {R"({"oneOf":[{"const":{"a":1,"b":2}},{"enum":[{"b":2.0,"a":1}]}]})",
       R"x(alternatives 0 and 1 of "oneOf" do not surely exclude each other ("anyOf" need not), at "#")x"},
      {R"({"$ref":"http://example.org/a"})",
       R"("$ref": "http://example.org/a" names nothing in #/$defs or #/definitions, at "#")"},
      {R"({"$ref":"#/$defs/b","$defs":{}})",
       R"("$ref": "#/$defs/b" names nothing in #/$defs or #/definitions, at "#")"},
      {R"({"type":"string","format":"regex"})", R"("format": "regex" is not supported, at "#")"},
      {R"({"type":"string","pattern":"a","minLength":1})",
       R"("pattern", "format" and limits of length are not supported together, at "#")"},
      {R"x({"type":"string","pattern":"(?=a)"})x",
       R"("pattern": the regular expression: assertions and flags are not supported, at character 3 at "#")"},
      {R"({"type":"strin"})", R"("type": "strin" is no type, at "#")"},
      {R"({"type":"string","maxLength":1000000000})", R"("maxLength" is over 10000 at "#")"},
      {R"({"type":"array","minItems":1000000})", R"("minItems" is over 10000 at "#")"},
      {R"({"type":"array","minItems":-1})", R"("minItems" must be a whole number from 0 on at "#")"},
      {R"({"type":"integer","minimum":3,"maximum":2})", R"(no integer lies between the bounds at "#")"},
      {R"({"type":"number","minimum":0.3,"exclusiveMaximum":0.3})", R"(no number lies between the bounds at "#")"},
      {R"({"enum":[]})", R"("enum" must be a list that is not empty at "#")"},
      {R"({"type":"string","enum":[1]})", R"(no value has the type, at "#")"},
      {R"({"required":["a"],"additionalProperties":false})",
       R"("required" names "a", which "properties" does not, at "#")"},
      {R"({"frobnicate":1})", R"("frobnicate" is not supported there, at "#")"}};
  for (const auto& [schema, error] : refused) EXPECT_EQ(error_of(schema), cat("the JSON schema: ", error)) << schema;
}

TEST(JsonSchema, WhatIsNotEnforcedIsNotedIfLoose) {
  const std::pair<const char*, std::vector<std::string>> noted[] = {
      {R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})", {"#/uniqueItems"}},
      {R"({"type":"object","properties":{"a":{"not":{}},"b":{"if":{},"then":{}}},"minProperties":1})",
       {"#/properties/a/not", "#/properties/b/if", "#/properties/b/then", "#/minProperties"}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", {"#/oneOf"}},
      {R"({"type":"string","format":"cuid2"})", {"#/format"}},
      {R"({"type":"string","pattern":"a","minLength":1,"format":"email"})", {"#/minLength", "#/format"}},
      {R"x({"type":"string","pattern":"^(?!x)a","format":"email"})x", {"#/pattern"}},
      {R"({"type":"string","maxLength":1000000000})", {"#/maxLength"}},
      {R"({"type":"integer","multipleOf":3,"format":"int32"})", {"#/multipleOf", "#/format"}},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", {"#/allOf/1"}},
      {R"({"$ref":"http://example.org/a"})", {"#/$ref"}},
      {R"({"type":"null"})", {}}};
  for (const auto& [schema, places] : noted) {
    const Source source{Kind::json_schema, schema, true};
    EXPECT_EQ(byte_compiler().unenforced(source), places) << schema;
    EXPECT_NO_THROW(byte_compiler().compile(source)) << schema;
  }
  EXPECT_TRUE(takes(byte_compiler(), {Kind::json_schema, noted[0].first, true}, "[1,1]"));
  EXPECT_FALSE(takes(byte_compiler(), {Kind::json_schema, noted[0].first, true}, "[1,null]")) << "the rest is enforced";
  EXPECT_THROW(byte_compiler().unenforced({Kind::json_schema, R"({"type":"strin"})", true}), CheckError);
}

TEST(JsonSchema, SchemasThatContradictEachOtherMatchNothing) {
  for (const char* schema :
       {R"({"allOf":[{"type":"null"},{"type":"string"}]})",
        R"({"$ref":"#/$defs/a","const":2,"$defs":{"a":{"const":1}}})",
        R"({"allOf":[{"type":"object","properties":{"a":{}},"required":["a"]},{"additionalProperties":false}]})"})
    EXPECT_EQ(error_of(schema), "the JSON schema: it matches no text") << schema;
}

TEST(JsonSchema, SchemasBesideThemselvesComeToAnEnd) {
  // Each reading of a leads to readings of a, with more beside it.
  std::string members;
  for (int i = 0; i < 20; ++i)
    members += cat(i ? "," : "", "\"p", i, R"(":{"$ref":"#/$defs/a","required":["p)", i, "\"]}");
  EXPECT_EQ(error_of(cat(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{)", members, "}}}}")), "");
  // Each definition has twice the next one, on both sides.
  std::string doubling;
  for (int i = 0; i < 30; ++i)
    for (const char* side : {"a", "b"}) {
      const std::string next = cat(R"({"$ref":"#/$defs/)", side, i + 1, "\"}");
      doubling += cat("\"", side, i, R"(":{"properties":{"x":)", next, R"(,"y":)", next, "}},");
    }
  EXPECT_EQ(error_of(cat(R"({"allOf":[{"$ref":"#/$defs/a0"},{"$ref":"#/$defs/b0"}],"$defs":{)", doubling,
                         R"("a30":{"minimum":1},"b30":{"maximum":2}}})")),
            "the JSON schema: \"allOf\" of schemas that cannot be made one is not supported, at \"#\"");
  EXPECT_EQ(error_of(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"required":["q"]}]}}})"),
            "the JSON schema: it matches no text");
}

TEST(JsonSchema, AnnotationsAreNot) {
  EXPECT_TRUE(schema_takes(R"({"$schema":"s","$id":"i","$comment":"c","title":"t","description":"d","default":1,
      "examples":[],"deprecated":true,"readOnly":true,"writeOnly":false,"x-order":1,"type":"null"})",
                           "null"));
}

TEST(JsonSchema, WhatIsNoSchemaIsRefused) {
  for (const char* text : {"", "1", "[]", "{", "nul", "{\"a\":1,\"a\":2}", "{\"type\":1}", "{\"properties\":[]}",
                           "{\"properties\":{\"a\":1}}", "{\"items\":[]}", "{\"anyOf\":{}}", "{\"type\":[]}", "\xFF"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
}

TEST(JsonSchema, LongChainsOfDefinitionsNeedNoDeepStack) {
  std::string schema = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 900; ++i) {
    schema += cat("\"d", i, "\":{\"$ref\":\"#/$defs/d", i + 1, "\"},");
  }
  schema += R"("d900":{"type":"null"}}})";
  EXPECT_TRUE(schema_takes(schema, "null"));
}

}  // namespace
}  // namespace quire::grammar
