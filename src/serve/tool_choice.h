// The tools that a caller offers, and whether the model may or must call one.
//
//   tool_choice   none: not shown to the model; auto (the default with tools): it may; required: it must call one or
//                 more; {"type": "function", "function": {"name": ...}}: it must call this one
//
// Errors   ApiError 400 that names the field.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/fields.h"

namespace quire::serve {

struct ToolFunction {
  std::string name;
  nlohmann::ordered_json parameters;  // a JSON schema
  bool strict = false;                // the schema is kept to the letter where calls are forced, or refused
};

struct ToolPlan {
  enum class Mode : uint8_t { none, may_call, must_call };
  Mode mode = Mode::none;
  nlohmann::ordered_json tools = nullptr;    // for the template, as they came; null when there are none to show
  std::vector<ToolFunction> functions = {};  // that may be called
  bool only_one = false;                     // call
};
ToolPlan read_tools(Fields& fields);  // tools, tool_choice, parallel_tool_calls

std::vector<std::string> names_of(const std::vector<ToolFunction>& functions);

}  // namespace quire::serve
