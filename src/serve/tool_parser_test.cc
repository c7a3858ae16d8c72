#include "serve/tool_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "base/testing/expect_refused.h"

namespace quire::serve {
namespace {

using Kind = ToolEvent::Kind;

constexpr int kAll = 100;
const std::vector<std::string> kNames = {"weather", "add", "na\"me"};

// (text) content, name<arguments> a call.
std::string show(const ToolEvents& events) {
  std::string shown;
  bool in_call = false;
  for (const ToolEvent& event : events) {
    if (in_call && event.kind != Kind::arguments) shown += '>';
    if (event.kind == Kind::content) shown += '(' + event.text + ')';
    if (event.kind == Kind::call) shown += event.text + '<';
    if (event.kind == Kind::arguments) shown += event.text;
    in_call = event.kind != Kind::content;
  }
  return in_call ? shown + '>' : shown;
}

void add_all(ToolEvents& all, const ToolEvents& more) {
  for (const ToolEvent& event : more) add_event(all, event.kind, event.text);
}

std::string parsed(const ToolForm& form, std::initializer_list<std::string_view> pieces, int most_calls = kAll) {
  ToolParser parser(form, kNames, most_calls);
  ToolEvents events;
  for (const std::string_view piece : pieces) add_all(events, parser.push(piece));
  add_all(events, parser.finish());
  return show(events);
}

std::string byte_by_byte(const ToolForm& form, std::string_view text) {
  ToolParser parser(form, kNames, kAll);
  ToolEvents events;
  for (size_t at = 0; at < text.size(); ++at) add_all(events, parser.push(text.substr(at, 1)));
  add_all(events, parser.finish());
  return show(events);
}

// The same, whichever way the text is cut.
void expect_parsed(const ToolForm& form, std::string_view text, const std::string& expected) {
  EXPECT_EQ(parsed(form, {text}), expected) << text;
  EXPECT_EQ(byte_by_byte(form, text), expected) << text;
  for (size_t cut = 0; cut <= text.size(); ++cut)
    ASSERT_EQ(parsed(form, {text.substr(0, cut), text.substr(cut)}), expected) << text << " cut at " << cut;
}

TEST(ToolParser, Hermes) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kHermesForm, text, expected);
  };
  expect("", "");
  expect("Hello.\n", "(Hello.\n)");
  expect("  \n", "(  \n)");
  expect(R"(<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>)", R"(add<{"a": 1, "b": [2]}>)");
  expect("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n", "add<{}>");
  expect("Let me see.\n\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>", "(Let me see.)add<{}>");
  expect(
      "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":\"}\\\"]\"}}</tool_call>\n<tool_call>{\"name\":\"weather\","
      "\"parameters\":{\"x\":{\"y\":1}}}</tool_call>",
      "add<{\"a\":\"}\\\"]\"}>weather<{\"x\":{\"y\":1}}>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call> Done. \n", "add<{}>(Done.)");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}\n{\"name\":\"weather\",\"arguments\":{}}</tool_call>",
         "add<{}>weather<{}>");
  expect("a < b <tool b <<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>", "(a < b <tool b <)add<{}>");
}

TEST(ToolParser, KeysInAnyOrderAndOtherKindsOfArguments) {
  const auto expect = [](std::string_view call, const std::string& expected) {
    expect_parsed(kHermesForm, std::string("<tool_call>").append(call).append("</tool_call>"), expected);
  };
  expect(R"({"arguments": {"a": 1}, "name": "add"})", R"(add<{"a": 1}>)");
  expect(R"({"id": 7, "type": "function", "name": "add", "arguments": {}})", "add<{}>");
  expect(R"({"name": "add", "arguments": {}, "more": [1, {"b": 2}]})", "add<{}>");
  expect(R"({"name": "add", "arguments": "{\"a\": 1}"})", R"(add<{"a": 1}>)");
  expect(R"({"arguments": "{\"a\": 1}", "name": "add"})", R"(add<{"a": 1}>)");
  expect(R"({"name": "add", "arguments": null})", "add<{}>");
  expect(R"({"name": "add"})", "add<{}>");
  expect(R"({"name": "add", "arguments": 3 })", "add<3>");
  expect(R"({"name": "add", "arguments": 3})", "add<3>");
  expect(R"({"name": "add", "arguments": [1, 2]})", "add<[1, 2]>");
  expect(R"({"name": "add", "arguments": {}, "name": "weather", "arguments": {"x": 1}})", "add<{}>");
  expect(R"({"name": "na\"me", "arguments": {}})", "na\"me<{}>");
  expect("{\"name\": \"add\", \"arguments\": {\"city\": \"K\xC3\xB6ln\"}}", "add<{\"city\": \"K\xC3\xB6ln\"}>");
}

TEST(ToolParser, WhatIsNoCallIsContent) {
  const auto expect_content = [](std::string_view text) {
    expect_parsed(kHermesForm, text, '(' + std::string(text) + ')');
  };
  expect_content("<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>");
  expect_content("<tool_call>hello</tool_call>");
  expect_content("<tool_call>{\"answer\": 3}</tool_call>");
  expect_content("<tool_call>{}</tool_call>");
  expect_content("<tool_call>{\"name\" \"add\"}</tool_call>");
  expect_content("<tool_call>{\"name\": , \"add\"}</tool_call>");
  expect_content("<tool_call>{\"name\": 3}</tool_call>");
  expect_content("<tool_call>{\"name\": \"add\\x\"}</tool_call>");
  expect_content("<tool_call>");
  expect_content("<tool_call> {\"name");
  expect_content("<tool_call> {\"name\": \"ad");
  expect_content("<tool_call>{\"arguments\": {\"a\": 1}");
  expect_content("text <tool_ca");
  expect_content("<tool_call><tool_call");
  expect_parsed(kHermesForm, "<tool_call><tool_call>{\"name\":\"add\",\"arguments\":{}}", "(<tool_call>)add<{}>");
}

TEST(ToolParser, CallsThatAreCutOrBrokenKeepWhatCame) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kHermesForm, text, expected);
  };
  expect("<tool_call>{\"name\":\"add\"", "add<>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{\"a\": [1, \"x", "add<{\"a\": [1, \"x>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}</tool_call>", "add<{}>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}}}</tool_call>", "add<{}>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{\"a\": oops}}</tool_call>", "add<{\"a\": oops}>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_c", "add<{}>(</tool_c)");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}} and text", "add<{}>(and text)");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}\n<tool_call>{\"name\":\"add\",\"arguments\":{}}",
         "add<{}>add<{}>");
  expect("<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call><tool_x{\"a\"", "add<{}>(<tool_x{\"a\")");
}

TEST(ToolParser, Llama3) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kLlama3Form, text, expected);
  };
  expect(R"({"name": "add", "parameters": {"a": 1}})", R"(add<{"a": 1}>)");
  expect("\n {\"type\": \"function\", \"name\": \"add\", \"parameters\": {}}", "add<{}>");
  expect(R"({"name": "add", "parameters": {}}; {"name": "weather", "parameters": {"x": ";"}})",
         R"(add<{}>weather<{"x": ";"}>)");
  expect("<|python_tag|>{\"name\": \"add\", \"parameters\": {}}", "add<{}>");
  expect("Look: <|python_tag|>{\"name\": \"add\", \"parameters\": {}}", "(Look:)add<{}>");
  expect("<|python_tag|>print(1)", "(<|python_tag|>print(1))");
  expect("Use {\"name\": \"add\", \"parameters\": {}}", "(Use {\"name\": \"add\", \"parameters\": {}})");
  expect("{\"answer\": {\"name\": \"add\"}}", "({\"answer\": {\"name\": \"add\"}})");
  expect("{\"name\": \"nobody\", \"parameters\": {}}", "({\"name\": \"nobody\", \"parameters\": {}})");
  expect("{\"name\": \"add\", \"parameters\": {}} Well.", "add<{}>(Well.)");
  expect("{ \"name\"", "({ \"name\")");
  expect("  Hello  ", "(  Hello  )");
}

TEST(ToolParser, Mistral) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kMistralForm, text, expected);
  };
  expect(R"([TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "weather", "arguments": {}}])",
         R"(add<{"a": 1}>weather<{}>)");
  expect(R"([TOOL_CALLS][{"name": "add", "arguments": {}, "id": "abc123456"}])", "add<{}>");
  expect(R"(Sure. [TOOL_CALLS] [{"name": "add", "arguments": {}}] Done.)", "(Sure.)add<{}>(Done.)");
  expect("[TOOL_CALLS]add{\"a\": {}}[TOOL_CALLS]weather{\"b\": 2}", "add<{\"a\": {}}>weather<{\"b\": 2}>");
  expect("[TOOL_CALLS]add[ARGS]{\"a\": 1}", "add<{\"a\": 1}>");
  expect("[TOOL_CALLS]add[CALL_ID]9abc[ARGS]{\"a\": 1}", "add<{\"a\": 1}>");
  expect("[TOOL_CALLS]nobody{}", "([TOOL_CALLS]nobody{})");
  expect("[TOOL_CALLS] add things", "([TOOL_CALLS] add things)");
  expect("[TOOL_CALLS] [1, 2]", "([TOOL_CALLS] [1, 2])");
  expect("[TOOL_CALLS] [", "([TOOL_CALLS] [)");
  expect("a [list] [TOOL", "(a [list] [TOOL)");
}

TEST(ToolParser, Array) {
  const auto expect = [](std::string_view text, const std::string& expected) {
    expect_parsed(kArrayForm, text, expected);
  };
  expect(R"([{"name": "add", "parameters": {"a": 1}}, {"name": "weather", "parameters": {}}])",
         R"(add<{"a": 1}>weather<{}>)");
  expect(R"({"name": "add", "parameters": {"a": 1}})", R"(add<{"a": 1}>)");
  expect("[ {\"name\": \"add\", \"parameters\": {\"a\": ", "add<{\"a\": >");
  expect("[{\"na", "([{\"na)");
}

TEST(ToolParser, ArgumentsAreToldAsTheyCome) {
  ToolParser parser(kHermesForm, kNames, kAll);
  EXPECT_EQ(show(parser.push("Hm ")), "(Hm)");
  EXPECT_EQ(show(parser.push("<tool_call>{\"name\": \"add\"")), "add<>");
  EXPECT_EQ(show(parser.push(", \"arguments\": {\"a\"")), "{\"a\">");
  EXPECT_EQ(show(parser.push(": 12")), ": 12>");
  EXPECT_EQ(show(parser.push("}}</tool_call>")), "}>");
  EXPECT_EQ(parser.finish(), ToolEvents{});
}

TEST(ToolParser, OnlySoManyCalls) {
  const std::string two = R"([{"name": "add", "parameters": {}}, {"name": "weather", "parameters": {"x": 1}}])";
  EXPECT_EQ(parsed(kArrayForm, {two}, 1), "add<{}>");
  EXPECT_EQ(parsed(kArrayForm, {two}, 2), R"(add<{}>weather<{"x": 1}>)");
}

// Random pieces of all forms, cut at random: nothing crashes, and the cuts make no difference.
TEST(ToolParser, AnyTextInAnyPieces) {
  constexpr std::string_view kPieces[] = {"<tool_call>",
                                          "</tool_call>",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          "\"name\"",
                                          ":",
                                          "\"add\"",
                                          ",",
                                          "\"arguments\"",
                                          "\"a\\",
                                          "\\\"",
                                          " ",
                                          "\n",
                                          ";",
                                          "[TOOL_CALLS]",
                                          "[ARGS]",
                                          "<|python_tag|>",
                                          "add",
                                          "null",
                                          "1",
                                          "\xC3\xB6",
                                          "{\"name\":\"add\",\"arguments\":{",
                                          "}}"};
  std::mt19937_64 random(7);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (uint64_t pieces = random() % 14; pieces > 0; --pieces) text += kPieces[random() % std::size(kPieces)];
    const size_t cut = text.empty() ? 0 : random() % text.size();
    for (const ToolForm* form : {&kHermesForm, &kLlama3Form, &kMistralForm, &kArrayForm}) {
      const std::string whole = parsed(*form, {text});
      ASSERT_EQ(byte_by_byte(*form, text), whole) << form->name << ": " << text;
      ASSERT_EQ(parsed(*form, {std::string_view(text).substr(0, cut), std::string_view(text).substr(cut)}), whole);
    }
  }
}

TEST(ToolForm, ByNameOrByTemplate) {
  EXPECT_EQ(&tool_form("llama3", "<tool_call>"), &kLlama3Form);
  EXPECT_EQ(&tool_form("", "... <tool_call> ..."), &kHermesForm);
  EXPECT_EQ(&tool_form("", "{{ '<|python_tag|>' }}"), &kLlama3Form);
  EXPECT_EQ(&tool_form("", "[TOOL_CALLS]"), &kMistralForm);
  EXPECT_EQ(&tool_form("", "plain"), &kHermesForm);
  expect_refused([] { tool_form("pythonic", ""); }, "pythonic");
}

}  // namespace
}  // namespace quire::serve
