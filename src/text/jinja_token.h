// The words of a template, between the lexer and the parser.
#pragma once
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/jinja_value.h"

namespace quire::text::jinja {

enum class TokenKind {
  data,         // text outside of tags
  print_begin,  // {{
  print_end,    // }}
  block_begin,  // {%
  block_end,    // %}
  name,
  string,  // escapes resolved
  integer,
  real,
  symbol,  // an operator or a bracket
  end,     // of the template
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;   // data, name, string, symbol
  Value number = {};  // integer, real

  bool is_symbol(std::string_view wanted) const { return kind == TokenKind::symbol && text == wanted; }
  bool is_name(std::string_view wanted) const { return kind == TokenKind::name && text == wanted; }
};

template <class... Parts>
[[noreturn]] void fail_at(int line, const Parts&... parts) {
  throw CheckError(cat("chat template, line ", line, ": ", parts...));
}

}  // namespace quire::text::jinja
