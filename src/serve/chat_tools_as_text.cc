#include "serve/chat_tools_as_text.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

std::string line_of(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string described(const ordered_json& tools) {
  std::string text = "You can call functions. These are the functions, one JSON object on each line:\n<tools>\n";
  for (const ordered_json& tool : tools) text += line_of(tool) + '\n';
  return text +
         "</tools>\nTo call a function, answer with its name and arguments in this form and nothing else:\n"
         "<tool_call>\n{\"name\": \"function_name\", \"arguments\": {\"argument\": \"value\"}}\n</tool_call>";
}

void add_line(std::string& text, const std::string& more) { text += text.empty() ? more : '\n' + more; }

std::string text_of(const ordered_json& message) {
  return message["content"].is_null() ? "" : message["content"].get<std::string>();
}

ordered_json without_calls(ordered_json message) {
  std::string text = text_of(message);
  for (const ordered_json& call : message["tool_calls"]) {
    const ordered_json& function = call["function"];
    add_line(text, cat("<tool_call>\n", line_of({{"name", function["name"]}, {"arguments", function["arguments"]}}),
                       "\n</tool_call>"));
  }
  message.erase("tool_calls");
  message["content"] = std::move(text);
  return message;
}

std::string as_response(const ordered_json& message) {
  return cat("<tool_response>\n", text_of(message), "\n</tool_response>");
}

}  // namespace

bool knows_tools(std::string_view chat_template) { return chat_template.find("tools") != std::string_view::npos; }

void write_tools_as_text(ordered_json& messages, const ordered_json& tools) {
  ordered_json written = ordered_json::array();
  if (!tools.is_null()) {
    std::string system = messages[0]["role"] == "system" ? text_of(messages[0]) + "\n\n" : "";
    written.push_back({{"role", "system"}, {"content", system + described(tools)}});
  }
  bool after_result = false;  // templates want roles to take turns, so results in a row are one message
  for (size_t i = !tools.is_null() && messages[0]["role"] == "system" ? 1 : 0; i < messages.size(); ++i) {
    ordered_json& message = messages[i];
    const bool is_result = message["role"] == "tool";
    if (is_result && after_result)
      written.back()["content"] = written.back()["content"].get<std::string>() + '\n' + as_response(message);
    else if (is_result)
      written.push_back({{"role", "user"}, {"content", as_response(message)}});
    else
      written.push_back(message.contains("tool_calls") ? without_calls(std::move(message)) : std::move(message));
    after_result = is_result;
  }
  messages = std::move(written);
}

}  // namespace quire::serve
