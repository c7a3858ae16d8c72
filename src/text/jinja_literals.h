// Literals in a template's source: the escapes of strings, the forms of numbers.
//
// Errors   CheckError with the line.
#pragma once
#include <string>
#include <string_view>

#include "text/jinja_token.h"

namespace quire::text::jinja {

std::string resolve_escapes(std::string_view literal, int line);  // between the quotes

struct Number {
  TokenKind kind;  // integer or real
  Value value;
  size_t bytes;
};

// The number at the start of the text. After a dot a fraction is none: `x.0.1` takes two subscripts.
Number read_number(std::string_view text, bool after_dot, int line);

}  // namespace quire::text::jinja
