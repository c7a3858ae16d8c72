// UTF-8, one character at a time, and the one rule for bytes that are none: every longest run of bytes that begins a
// character but does not finish it, and every other byte that fits nowhere, stands for one U+FFFD. Rust's and Python's
// lossy decoding have the same rule.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

struct Utf8Char {
  enum class State { whole, broken, cut };  // cut: the bytes end inside a character that was right so far
  State state;
  size_t bytes;   // that it takes of the text; of a broken or cut one, what one U+FFFD stands for
  char32_t code;  // U+FFFD unless whole
};

inline constexpr char32_t kReplacement = 0xFFFD;

Utf8Char read_beyond_ascii(std::string_view bytes);  // read_utf8 for a first byte of 0x80 or more
inline Utf8Char read_utf8(std::string_view bytes) {  // the first character of at least one byte
  const auto first = static_cast<unsigned char>(bytes[0]);
  return first < 0x80 ? Utf8Char{Utf8Char::State::whole, 1, first} : read_beyond_ascii(bytes);
}
void append_utf8(std::string& text, char32_t code);

bool is_utf8(std::string_view bytes);
std::string repaired_utf8(std::string_view bytes);  // with U+FFFD for what is no UTF-8

size_t count_characters(std::string_view utf8);

bool is_white_space(char32_t code);  // Unicode's White_Space

}  // namespace quire
