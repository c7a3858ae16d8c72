// Between JSON and a template's values: what a request brings in, what `tojson` writes out.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/jinja_value.h"

namespace quire::text::jinja {

// Throws CheckError past a limit.
Value from_json(Meter& meter, const nlohmann::ordered_json& json);

// Python's json.dumps.
struct JsonStyle {
  bool ascii_only = false;
  bool sorted_keys = false;
  bool lines = false;  // a line for each element
  std::string indent;  // of a line, for each level
  std::string between = ", ";
  std::string after_key = ": ";
};
std::string to_json(Meter& meter, const Value& value, const JsonStyle& style);  // throws for what JSON cannot hold

}  // namespace quire::text::jinja
