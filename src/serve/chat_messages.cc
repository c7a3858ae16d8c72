#include "serve/chat_messages.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/strict_json.h"
#include "serve/api_error.h"
#include "serve/fields.h"
#include "serve/request_reader.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostText = 64 << 20;  // bodies have a smaller limit
constexpr size_t kMostToolCalls = 1024;

std::string text_of_part(const ordered_json& part, const std::string& path, Ignored* ignored) {
  Fields fields(part, path, ignored);
  const std::string type = fields.string("type", kMostNameBytes).value_or("text");
  if (type != "text" && type != "refusal")
    refuse(path, cat("parts of type ", in_quotes(type, 40), " are not supported: the model reads text only"));
  if (!fields.is_there(type)) refuse(fields.path_of(type), "is required");
  std::string text = fields.string(type, kMostText).value_or("");
  fields.finish();
  return text;
}

std::optional<std::string> content_of(Fields& fields) {
  const ordered_json* content = fields.raw("content");
  if (!content) return std::nullopt;
  const std::string path = fields.path_of("content");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse(path, "expected a string or an array of parts of text");
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    if (i > 0) joined += '\n';
    joined += text_of_part((*content)[i], cat(path, "[", i, "]"), fields.ignored());
  }
  return joined;
}

ordered_json arguments_of(const std::string& text) {
  try {
    return parse_strict_ordered_json(text, kBodyLimits);
  } catch (const JsonError&) {
    return text;
  }
}

ordered_json read_tool_call(const ordered_json& call, const std::string& path, Ignored* ignored) {
  Fields fields(call, path, ignored);
  const auto id = fields.string("id", kMostNameBytes);
  const std::string type = fields.string("type", kMostNameBytes).value_or("function");
  if (type != "function") refuse(fields.path_of("type"), "only function calls are supported");
  fields.ignore("index");  // as in streams
  auto function = fields.object("function");
  if (!function) refuse(fields.path_of("function"), "is required");
  fields.finish();
  const auto name = function->string("name", kMostNameBytes);
  if (!name) refuse(function->path_of("name"), "is required");
  const ordered_json* given = function->raw("arguments");
  function->finish();
  ordered_json arguments = given ? *given : ordered_json::object();
  if (arguments.is_string()) arguments = arguments_of(arguments.get_ref<const std::string&>());
  ordered_json read = {{"type", "function"}, {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}};
  if (id) read["id"] = *id;
  return read;
}

ordered_json read_tool_calls(Fields& fields) {
  const ordered_json* calls = fields.raw("tool_calls");
  ordered_json read = ordered_json::array();
  if (!calls) return read;
  const std::string path = fields.path_of("tool_calls");
  if (!calls->is_array() || calls->size() > kMostToolCalls)
    refuse(path, cat("expected an array of at most ", kMostToolCalls, " calls"));
  for (size_t i = 0; i < calls->size(); ++i)
    read.push_back(read_tool_call((*calls)[i], cat(path, "[", i, "]"), fields.ignored()));
  return read;
}

void read_assistant(Fields& fields, ordered_json& message) {
  ordered_json calls = read_tool_calls(fields);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  if (const auto reasoning = fields.string("reasoning_content", kMostText)) message["reasoning_content"] = *reasoning;
  const auto refusal = fields.string("refusal", kMostText);
  if (refusal && message["content"].is_null()) message["content"] = *refusal;
  fields.ignore("annotations");  // what the caller was told about an earlier answer
  fields.refuse("audio", "audio is not supported");
  fields.refuse("function_call", "is an older form of tool_calls and not supported");
}

std::string role_of(Fields& fields) {
  std::string role = fields.string("role", kMostNameBytes).value_or("");
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool")
    refuse(fields.path_of("role"),
           cat("expected system, developer, user, assistant or tool, got ", in_quotes(role, 40)));
  return role;
}

ordered_json read_message(const ordered_json& given, const std::string& path, Ignored* ignored) {
  Fields fields(given, path, ignored);
  ordered_json message = {{"role", role_of(fields)}, {"content", nullptr}};
  if (auto content = content_of(fields)) message["content"] = *std::move(content);
  if (const auto name = fields.string("name", kMostNameBytes)) message["name"] = *name;
  if (message["role"] == "assistant") read_assistant(fields, message);
  if (message["role"] == "tool")
    if (const auto id = fields.string("tool_call_id", kMostNameBytes)) message["tool_call_id"] = *id;
  if (message["content"].is_null() && !message.contains("tool_calls")) {
    if (!given.contains("content") && message["role"] != "assistant") refuse(fields.path_of("content"), "is required");
    message["content"] = "";
  }
  fields.finish();
  return message;
}

}  // namespace

ordered_json read_messages(const ordered_json& messages, Ignored* ignored) {
  if (!messages.is_array() || messages.empty())
    throw ApiError(400, "messages: expected an array of at least one message", "messages");
  ordered_json read = ordered_json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    read.push_back(read_message(messages[i], cat("messages[", i, "]"), ignored));
  return read;
}

}  // namespace quire::serve
