// How values look in the output: Python's str, repr and json.dumps; and how JSON becomes values.
//
// Errors   CheckError past a limit, or for a value that has no such form.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "jinja/value.h"

namespace quire::jinja {

std::string to_string(Integer value);

std::string str(Meter& meter, const Value& value);   // strings as they are, undefined as nothing
std::string repr(Meter& meter, const Value& value);  // strings in quotes
Value as_text(Meter& meter, const Value& value);     // str, which keeps a string as the same value
const std::string& text_of(const Value& value, std::string_view wanted_by);  // of a value that must be a string

struct JsonStyle {
  bool ascii_only = false;
  bool sorted_keys = false;
  bool lines = false;  // a line for each element
  std::string indent;  // of a line, for each level
  std::string between = ", ";
  std::string after_key = ": ";
};
std::string to_json(Meter& meter, const Value& value, const JsonStyle& style);
Value from_json(Meter& meter, const nlohmann::ordered_json& json);

}  // namespace quire::jinja
