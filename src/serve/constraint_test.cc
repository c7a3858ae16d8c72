#include "serve/constraint.h"

#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using grammar::Kind;
using grammar::Source;
using nlohmann::ordered_json;
using testing::expect_api_error;

std::optional<Constraint> read(const std::string& body) {
  const ordered_json object = ordered_json::parse(body);
  Ignored ignored;
  Fields fields(object, "", &ignored);
  auto constraint = read_openai_constraint(fields);
  fields.finish();
  EXPECT_EQ(ignored.header(), "");
  return constraint;
}

void expect_source(const std::string& body, const Source& source, const std::string& field) {
  SCOPED_TRACE(body);
  const auto constraint = read(body);
  ASSERT_TRUE(constraint.has_value());
  EXPECT_EQ(constraint->source, source);
  EXPECT_EQ(constraint->field, field);
}

TEST(OpenaiConstraint, HasManyNames) {
  const Source schema{Kind::json_schema, R"({"type":"object"})", true}, regex{Kind::regex, "a+"}, ebnf{Kind::ebnf, "x"};
  EXPECT_FALSE(read("{}").has_value());
  EXPECT_FALSE(read(R"({"response_format": {"type": "text"}, "guided_json": null, "regex": null})").has_value());
  expect_source(R"({"response_format": {"type": "json_object"}})", {Kind::json}, "response_format");
  expect_source(R"({"response_format": {"type": "json_object", "schema": {"type": "object"}}})", schema,
                "response_format");
  expect_source(R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": null,
                    "schema": {"type": "object"}}}})",
                schema, "response_format");
  expect_source(R"({"json_schema": "{\"type\":\"object\"}"})", schema, "json_schema");
  expect_source(R"({"guided_json": {"type": "object"}})", schema, "guided_json");
  expect_source(R"({"guided_regex": "a+"})", regex, "guided_regex");
  expect_source(R"({"guided_grammar": "x"})", ebnf, "guided_grammar");
  expect_source(R"({"grammar": "x"})", ebnf, "grammar");
  expect_source(R"({"structured_outputs": {"json": {"type": "object"}, "regex": null}})", schema,
                "structured_outputs.json");
  expect_source(R"({"structured_outputs": {"regex": "a+"}})", regex, "structured_outputs.regex");
  expect_source(R"({"structured_outputs": {"grammar": "x"}})", ebnf, "structured_outputs.grammar");
  expect_source(R"({"structured_outputs": {"json_object": true}})", {Kind::json}, "structured_outputs.json_object");
}

TEST(OpenaiConstraint, StrictSchemasAreNotLoose) {
  expect_source(R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
                    "schema": {"type": "object"}}}})",
                {Kind::json_schema, R"({"type":"object"})", false}, "response_format");
}

TEST(OpenaiConstraint, AChoiceIsOneOfItsTexts) {
  expect_source(R"({"guided_choice": ["yes", "a\"\\b\n", "ö"]})",
                {Kind::ebnf, "root ::= \"yes\" | \"a\\\"\\\\b\\n\" | \"ö\""}, "guided_choice");
  expect_source(R"({"structured_outputs": {"choice": ["1"]}})", {Kind::ebnf, "root ::= \"1\""},
                "structured_outputs.choice");
  testing::TinyService tiny({.loop = false});
  tiny.service().grammars().compile(read(R"({"guided_choice": ["yes", "a\"\\b\n\r\t", "ö"]})")->source);
}

TEST(OpenaiConstraint, WhatIsRefused) {
  const auto expect = [](const std::string& body, const std::string& param) {
    SCOPED_TRACE(body);
    expect_api_error([&] { read(body); }, 400, param);
  };
  expect(R"({"guided_choice": []})", "guided_choice");
  expect(R"({"guided_choice": [1]})", "guided_choice[0]");
  expect(R"({"guided_regex": {}})", "guided_regex");
  expect(R"({"grammar": "x", "regex": "a"})", "grammar");
  expect(R"({"structured_outputs": {"regex": "a"}, "guided_json": {}})", "structured_outputs.regex");
  expect(R"({"structured_outputs": {"regex": "a", "choice": ["b"]}})", "structured_outputs.choice");
  expect(R"({"structured_outputs": {"structural_tag": "a"}})", "structured_outputs.structural_tag");
  expect(R"({"response_format": {"type": "json_object"}, "guided_choice": ["a"]})", "guided_choice");
}

std::optional<Source> of_sglang(const std::string& body) {
  const ordered_json object = ordered_json::parse(body);
  Fields fields(object, "");
  const auto read = read_sglang_constraint(fields);
  fields.finish();
  return read ? std::optional(read->source) : std::nullopt;
}

TEST(SglangConstraint, IsOneOfThree) {
  EXPECT_EQ(of_sglang("{}"), std::nullopt);
  EXPECT_EQ(of_sglang(R"({"regex": "a+", "ebnf": null})"), (Source{Kind::regex, "a+"}));
  EXPECT_EQ(of_sglang(R"({"ebnf": "root ::= \"a\""})"), (Source{Kind::ebnf, "root ::= \"a\""}));
  const Source schema{Kind::json_schema, R"({"type":"object"})"};
  EXPECT_EQ(of_sglang(R"({"json_schema": {"type": "object"}})"), schema);
  EXPECT_EQ(of_sglang(R"({"json_schema": "{\"type\":\"object\"}"})"), schema);
  EXPECT_THROW(of_sglang(R"({"regex": "a", "ebnf": "b"})"), ApiError);
  EXPECT_THROW(of_sglang(R"({"regex": 1})"), ApiError);
}

TEST(SglangConstraint, SchemasAreLooseUnlessReadStrictly) {
  const ordered_json schema = ordered_json::parse(R"({"json_schema": {"uniqueItems": true}})");
  const ordered_json regex = ordered_json::parse(R"({"regex": "a"})");
  testing::TinyService tiny({.loop = false});
  Ignored ignored, strict(true);
  Fields tolerant(schema, "sampling_params", &ignored), strictly(schema, "", &strict), other(regex, "", &ignored);
  const auto loose = read_sglang_constraint(tolerant);
  EXPECT_TRUE(loose->source.loose);
  EXPECT_FALSE(read_sglang_constraint(strictly)->source.loose);
  EXPECT_FALSE(read_sglang_constraint(other)->source.loose);
  grammar::CallGrammars grammars(tiny.service().grammars());
  note_unenforced(*loose, grammars, ignored);
  EXPECT_EQ(ignored.header(), "sampling_params.json_schema#/uniqueItems");
}

TEST(Constraint, BecomesAMask) {
  testing::TinyService tiny({.loop = false});
  engine::Request request;
  grammar::CallGrammars grammars(tiny.service().grammars());
  constrain({{Kind::regex, "[ab]"}, "regex"}, grammars, request);
  const uint32_t* mask = request.mask->next();
  ASSERT_NE(mask, nullptr);
  const auto allowed = [&](int32_t token) { return (mask[token / 32] >> (token % 32)) & 1; };
  EXPECT_TRUE(allowed('a') && allowed('b'));
  EXPECT_FALSE(allowed('c') || allowed(testing::kEnd) || allowed(testing::kBegin));
}

}  // namespace
}  // namespace quire::serve
