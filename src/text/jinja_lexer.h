// Cuts a template into tokens, and the whitespace around tags as chat templates expect it: the newline after a block
// tag goes, and so do blanks from the start of a line to a block tag (trim_blocks and lstrip_blocks); `-` takes all
// whitespace on its side, `+` keeps it. One newline at the end of the source is dropped.
//
// Errors   CheckError with the line: an unknown character, a bracket that does not match, an unfinished string, tag,
//          comment or raw block.
#pragma once
#include <string_view>
#include <vector>

#include "text/jinja_token.h"

namespace quire::text::jinja {

std::vector<Token> tokenize(std::string_view source);  // the last token is `end`

}  // namespace quire::text::jinja
