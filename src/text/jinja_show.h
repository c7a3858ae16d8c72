// How values look in the output: Python's str and repr, and the forms of its numbers.
#pragma once
#include <string>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::text::jinja {

std::string to_string(Integer value);
std::string show_real(double value);  // the shortest digits that read back as the same number, in Python's layout
std::string repr_of_text(std::string_view text);

std::string show(Meter& meter, const Value& value);  // str(): strings as they are, undefined as nothing
std::string repr(Meter& meter, const Value& value);  // repr(): strings in quotes

// str() that keeps a string, and so whether it is markup, as it is.
Value as_text(Meter& meter, const Value& value);

// The text of a value that must be a string.
const std::string& text_of(const Value& value, std::string_view wanted_by);

}  // namespace quire::text::jinja
