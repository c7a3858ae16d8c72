#include "serve/chat_tools_as_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/tool_parser.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

const ordered_json kTools = ordered_json::parse(R"([{"type": "function", "function": {"name": "add"}}])");

TEST(ToolsAsText, ToolsAreDescribedInTheSystemMessage) {
  ordered_json alone = ordered_json::parse(R"([{"role": "user", "content": "hi"}])");
  write_tools_as_text(alone, kTools);
  ASSERT_EQ(alone.size(), 2u);
  EXPECT_EQ(alone[0]["role"], "system");
  EXPECT_NE(alone[0]["content"].get<std::string>().find(kTools[0].dump()), std::string::npos);

  ordered_json beside = ordered_json::parse(R"([{"role": "system", "content": "Be kind."},
                                                {"role": "user", "content": "hi"}])");
  write_tools_as_text(beside, kTools);
  ASSERT_EQ(beside.size(), 2u);
  EXPECT_TRUE(beside[0]["content"].get<std::string>().starts_with("Be kind.\n\nYou can call"));
}

TEST(ToolsAsText, CallsAndResultsAreText) {
  ordered_json messages = ordered_json::parse(R"([
      {"role": "user", "content": "1 + 2?"},
      {"role": "assistant", "content": "Well.", "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}]},
      {"role": "tool", "content": "3", "tool_call_id": "1"},
      {"role": "tool", "content": "three"},
      {"role": "user", "content": "thanks"}])");
  write_tools_as_text(messages, nullptr);
  EXPECT_EQ(messages, ordered_json::parse(R"([
      {"role": "user", "content": "1 + 2?"},
      {"role": "assistant",
       "content": "Well.\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":2}}\n</tool_call>"},
      {"role": "user",
       "content": "<tool_response>\n3\n</tool_response>\n<tool_response>\nthree\n</tool_response>"},
      {"role": "user", "content": "thanks"}])"));
  ToolParser parser(kHermesForm, {"add"}, 10);
  const ToolEvents events = parser.push(messages[1]["content"].get<std::string>());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].text, R"({"a":1,"b":2})");
}

TEST(ToolsAsText, WithoutToolsNothingChanges) {
  const ordered_json before = ordered_json::parse(R"([{"role": "system", "content": "x"},
                                                      {"role": "user", "content": "hi"}])");
  ordered_json messages = before;
  write_tools_as_text(messages, nullptr);
  EXPECT_EQ(messages, before);
}

TEST(ToolsAsText, TemplatesThatKnowTools) {
  EXPECT_TRUE(knows_tools("{% if tools %}"));
  EXPECT_FALSE(knows_tools("{{ messages }}"));
}

}  // namespace
}  // namespace quire::serve
