// One conversion of a formatted value: how wide, how precise, in which notation.
#pragma once
#include <string>
#include <string_view>

#include "text/jinja_object.h"

namespace quire::text::jinja {

struct FormatSpec {
  std::string fill = " ";
  char align = 0;   // < > ^ or = (after the sign); 0: as the type has it
  char sign = '-';  // - + or a space
  bool alternate = false;
  char group = 0;  // , or _ between thousands
  size_t width = 0;
  int precision = -1;  // -1: not given
  char type = 0;       // 0: as the type has it
};

FormatSpec parse_spec(std::string_view text);  // what stands after the colon in {:...}

// Throw CheckError when the type does not fit the value.
std::string format_value(Machine& machine, const FormatSpec& spec, const Value& value);
std::string pad(Machine& machine, const FormatSpec& spec, std::string text, char usual_align);

// Reads digits at `at`, moving it behind them; throws for sizes that no string here could have.
size_t read_size(std::string_view text, size_t& at);

}  // namespace quire::text::jinja
