#include "serve/chat_messages.h"

#include <gtest/gtest.h>

#include "serve/openai_testing.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;
using testing::expect_api_error;

ordered_json read(const char* messages, Ignored* ignored = nullptr) {
  return read_messages(ordered_json::parse(messages), ignored);
}

TEST(ChatMessages, RolesAndContents) {
  EXPECT_EQ(read(R"([{"role": "developer", "content": "Be kind."},
                     {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "a"}, {"text": "b"}]},
                     {"role": "assistant", "content": "c", "refusal": null, "annotations": [], "audio": null},
                     {"role": "tool", "content": "d", "tool_call_id": "call_1"}])"),
            ordered_json::parse(R"([{"role": "system", "content": "Be kind."},
                                    {"role": "user", "content": "a\nb", "name": "Ada"},
                                    {"role": "assistant", "content": "c"},
                                    {"role": "tool", "content": "d", "tool_call_id": "call_1"}])"));
}

TEST(ChatMessages, ArgumentsOfCallsAreObjects) {
  const ordered_json messages = read(R"([{"role": "assistant", "content": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}},
      {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{oops"}},
      {"id": "3", "type": "function", "function": {"name": "f", "arguments": {"c": 3}}},
      {"id": "4", "function": {"name": "f"}}]}])");
  EXPECT_TRUE(messages[0]["content"].is_null());
  const ordered_json& calls = messages[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(calls[1]["function"]["arguments"], "{oops");
  EXPECT_EQ(calls[2]["function"]["arguments"].dump(), R"({"c":3})");
  EXPECT_EQ(calls[3]["function"]["arguments"].dump(), "{}");
  EXPECT_EQ(calls[3]["id"], "4");
}

TEST(ChatMessages, WhatOthersAddIsIgnoredByName) {
  Ignored ignored;
  const ordered_json messages = read(R"([
      {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
      {"role": "user", "content": "b", "id": "msg_1", "tool_calls": null},
      {"role": "assistant", "content": "c", "reasoning": "r", "reasoning_details": [{}], "annotations": [],
       "provider_specific_fields": {"x": 1}, "function_call": null, "tool_calls": [
       {"id": "1", "type": "function", "index": 0, "cache_control": null, "extra": 1,
        "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}]}])",
                                     &ignored);
  EXPECT_EQ(messages[0], ordered_json::parse(R"({"role": "system", "content": "a"})"));
  EXPECT_EQ(messages[1], ordered_json::parse(R"({"role": "user", "content": "b"})"));
  EXPECT_EQ(ignored.header(),
            "messages[].content[].cache_control, messages[].id, messages[].tool_calls[].extra, "
            "messages[].tool_calls[].function.parsed_arguments, messages[].reasoning, messages[].reasoning_details, "
            "messages[].provider_specific_fields");
}

TEST(ChatMessages, NullIsAnEmptyText) {
  const ordered_json messages = read(R"([{"role": "user", "content": null}, {"role": "assistant"},
      {"role": "assistant", "content": null, "tool_calls": null, "reasoning_content": "hm"},
      {"role": "tool", "content": null, "tool_call_id": null}])");
  for (const ordered_json& message : messages) EXPECT_EQ(message["content"], "") << message;
  EXPECT_EQ(messages[2]["reasoning_content"], "hm");
}

TEST(ChatMessages, WhatIsRefused) {
  const auto expect = [](const char* messages, const std::string& param, const std::string& part = {}) {
    expect_api_error([&] { read(messages); }, 400, param, part);
  };
  expect("[]", "messages");
  expect("{}", "messages");
  expect("[3]", "messages[0]");
  expect(R"([{"content": "a"}])", "messages[0].role");
  expect(R"([{"role": "function", "content": "a"}])", "messages[0].role", "function");
  expect(R"([{"role": "user"}])", "messages[0].content");
  expect(R"([{"role": "user", "content": 3}])", "messages[0].content");
  expect(R"([{"role": "user", "content": "a", "colour": 1}])", "messages[0].colour");
  expect(R"([{"role": "user", "content": "a", "tool_calls": []}])", "messages[0].tool_calls");
  expect(R"([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
         "messages[1].content[0]", "text only");
  expect(R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text");
  expect(R"([{"role": "assistant", "content": "a", "audio": {"id": "x"}}])", "messages[0].audio");
  expect(R"([{"role": "assistant", "tool_calls": [{"id": "1"}]}])", "messages[0].tool_calls[0].function");
  expect(R"([{"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}])",
         "messages[0].tool_calls[0].type");
}

TEST(ChatMessages, APartWithoutTextIsEmpty) {
  const ordered_json messages =
      read(R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": null}]}])");
  EXPECT_EQ(messages[0]["content"], "a\n");
}

}  // namespace
}  // namespace quire::serve
