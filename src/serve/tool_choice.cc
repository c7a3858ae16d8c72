#include "serve/tool_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostTools = 128, kMostDescriptionBytes = 1 << 20;

Fields required_object(Fields& fields, std::string_view name) {
  auto object = fields.object(name);
  if (!object) refuse(fields.path_of(name), "is required");
  return *std::move(object);
}

std::string required_name(Fields& function) {
  const std::string name = function.string("name", kMostNameBytes).value_or("");
  if (name.empty()) refuse(function.path_of("name"), "is required");
  return name;
}

ordered_json read_parameters(Fields& function) {
  const ordered_json* parameters = function.raw("parameters");
  if (!parameters) return {{"type", "object"}, {"properties", ordered_json::object()}, {"additionalProperties", false}};
  if (!parameters->is_object()) refuse(function.path_of("parameters"), "expected a JSON schema");
  return *parameters;
}

ToolFunction read_tool(const ordered_json& tool, const std::string& path, Ignored* ignored) {
  Fields fields(tool, path, ignored);
  const std::string type = fields.string("type", kMostNameBytes).value_or("");
  if (type != "function")
    refuse(fields.path_of("type"), cat("only tools of type \"function\" are supported, got ", in_quotes(type, 40)));
  Fields function = required_object(fields, "function");
  fields.finish();
  ToolFunction read{required_name(function), read_parameters(function)};
  read.strict = function.boolean("strict").value_or(false);
  function.string("description", kMostDescriptionBytes);
  function.finish();
  return read;
}

std::vector<ToolFunction> read_functions(const ordered_json& tools, const std::string& path, Ignored* ignored) {
  if (!tools.is_array() || tools.size() > kMostTools)
    refuse(path, cat("expected an array of at most ", kMostTools, " tools"));
  std::vector<ToolFunction> functions;
  for (size_t i = 0; i < tools.size(); ++i) functions.push_back(read_tool(tools[i], cat(path, "[", i, "]"), ignored));
  return functions;
}

void keep_only(std::vector<ToolFunction>& functions, const std::string& name, const std::string& path) {
  const auto meant = std::find_if(functions.begin(), functions.end(),
                                  [&](const ToolFunction& function) { return function.name == name; });
  if (meant == functions.end()) refuse(path, cat("there is no tool named ", in_quotes(name, 60)));
  functions = {ToolFunction(*meant)};
}

void choose_named(Fields choice, ToolPlan& plan) {
  const std::string type = choice.string("type", kMostNameBytes).value_or("");
  if (type != "function") refuse(choice.path_of("type"), "only \"function\" is supported");
  Fields function = required_object(choice, "function");
  keep_only(plan.functions, required_name(function), function.path_of("name"));
  function.finish();
  choice.finish();
  plan.mode = ToolPlan::Mode::must_call;
  plan.only_one = true;
}

void choose(Fields& fields, ToolPlan& plan) {
  const ordered_json* choice = fields.raw("tool_choice");
  plan.mode = plan.functions.empty() ? ToolPlan::Mode::none : ToolPlan::Mode::may_call;
  if (!choice || *choice == "auto") return;
  if (*choice == "none") {
    plan.mode = ToolPlan::Mode::none;
    return;
  }
  const std::string path = fields.path_of("tool_choice");
  if (plan.functions.empty()) refuse(path, "is only allowed with tools");
  if (choice->is_object()) return choose_named(Fields(*choice, path, fields.ignored()), plan);
  if (*choice != "required") refuse(path, "expected none, auto, required or a function");
  plan.mode = ToolPlan::Mode::must_call;
}

}  // namespace

ToolPlan read_tools(Fields& fields) {
  ToolPlan plan;
  const ordered_json* tools = fields.raw("tools");
  if (tools) plan.functions = read_functions(*tools, fields.path_of("tools"), fields.ignored());
  plan.only_one = !fields.boolean("parallel_tool_calls").value_or(true);
  choose(fields, plan);
  if (plan.mode != ToolPlan::Mode::none) plan.tools = *tools;
  return plan;
}

std::vector<std::string> names_of(const std::vector<ToolFunction>& functions) {
  std::vector<std::string> names;
  for (const ToolFunction& function : functions) names.push_back(function.name);
  return names;
}

}  // namespace quire::serve
