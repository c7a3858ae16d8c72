// Text from files and requests, made fit for one line on a terminal: in quotes, what could move the cursor or is not
// UTF-8 written as escapes, and shortened.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// Text longer than `most` bytes is cut before a character and followed by its length: "abc"... (70000 bytes)
std::string in_quotes(std::string_view text, size_t most = 80);

// As it is where it can stand in a line so, else in quotes.
std::string in_quotes_if_odd(std::string_view text, size_t most = 80);

}  // namespace quire
