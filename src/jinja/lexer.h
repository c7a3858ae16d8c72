// Cuts a template into tokens, and the whitespace around tags as chat templates expect it: the newline after a block
// tag goes, and so do blanks from the start of a line to a block tag (trim_blocks and lstrip_blocks); `-` takes all
// whitespace on its side, `+` keeps it. One newline at the end of the source is dropped.
//
// Errors   CheckError with the line: an unknown character, a bracket that does not match, an unfinished string, tag,
//          comment or raw block, a number or an escape that names nothing.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace quire::jinja {

struct Token {
  enum Kind {
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
  Kind kind;
  int line;
  std::string text;   // data, name, string, symbol
  Value number = {};  // integer, real

  bool is_symbol(std::string_view wanted) const { return kind == symbol && text == wanted; }
  bool is_name(std::string_view wanted) const { return kind == name && text == wanted; }
};

std::vector<Token> tokenize(std::string_view source);  // the last token is `end`

template <class... Parts>
[[noreturn]] void fail_at(int line, const Parts&... parts) {
  throw CheckError(cat("chat template, line ", line, ": ", parts...));
}

}  // namespace quire::jinja
