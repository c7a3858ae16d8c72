#include "serve/tool_choice.h"

#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;
using Mode = ToolPlan::Mode;
using Names = std::vector<std::string>;

const char* const kTools = R"("tools": [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "strict": true,
                                      "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}}])";

ToolPlan read(const std::string& members) {
  const ordered_json body = ordered_json::parse("{" + members + "}");
  Fields fields(body, "");
  ToolPlan plan = read_tools(fields);
  fields.finish();
  return plan;
}
ToolPlan chosen(const std::string& choice) { return read(kTools + (", \"tool_choice\": " + choice)); }

TEST(ToolChoice, Modes) {
  EXPECT_EQ(read("").mode, Mode::none);
  EXPECT_EQ(read("\"tool_choice\": \"none\"").mode, Mode::none);
  EXPECT_EQ(read(kTools).mode, Mode::may_call);
  EXPECT_EQ(chosen("\"auto\"").mode, Mode::may_call);
  EXPECT_EQ(chosen("null").mode, Mode::may_call);
  EXPECT_EQ(chosen("\"required\"").mode, Mode::must_call);
  EXPECT_EQ(chosen("\"none\"").mode, Mode::none);
  EXPECT_TRUE(chosen("\"none\"").tools.is_null());
  EXPECT_EQ(chosen("\"auto\"").tools.size(), 2u);
}

TEST(ToolChoice, Functions) {
  const ToolPlan all = chosen("\"required\"");
  EXPECT_EQ(names_of(all.functions), (Names{"add", "now"}));
  EXPECT_TRUE(all.functions[0].strict);
  EXPECT_FALSE(all.functions[1].strict);
  EXPECT_EQ(all.functions[1].parameters["properties"].size(), 0u);
  EXPECT_FALSE(all.only_one);
  EXPECT_TRUE(read(kTools + std::string(", \"parallel_tool_calls\": false")).only_one);

  const ToolPlan named = chosen(R"({"type": "function", "function": {"name": "now"}})");
  EXPECT_EQ(named.mode, Mode::must_call);
  EXPECT_EQ(names_of(named.functions), Names{"now"});
  EXPECT_TRUE(named.only_one);
  EXPECT_EQ(named.tools.size(), 2u) << "the template shows all";
}

TEST(ToolChoice, WhatIsRefused) {
  const auto expect = [](const std::string& members, const std::string& param) {
    expect_api_error([&] { read(members); }, 400, param);
  };
  expect("\"tools\": {}", "tools");
  expect(R"("tools": [{"type": "web_search"}])", "tools[0].type");
  expect(R"("tools": [{"type": "function"}])", "tools[0].function");
  expect(R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name");
  expect(R"("tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}])",
         "tools[0].function.parameters");
  expect(R"("tools": [{"type": "function", "function": {"name": "a", "x": 3}}])", "tools[0].function.x");
  expect("\"tool_choice\": \"required\"", "tool_choice");
  expect_api_error([] { chosen("\"maybe\""); }, 400, "tool_choice");
  expect_api_error([] { chosen(R"({"type": "allowed_tools"})"); }, 400, "tool_choice.type");
  expect_api_error([] { chosen(R"({"type": "function", "function": {"name": "nobody"}})"); }, 400,
                   "tool_choice.function.name", "nobody");
}

}  // namespace
}  // namespace quire::serve
