// Python's str over UTF-8: positions and lengths are code points, whitespace and letter case are Unicode's.
//
// A byte that is not part of valid UTF-8 counts as one code point and passes through unchanged. Case is mapped one
// code point to one, so the few letters whose upper case is longer (such as the ligatures) keep their form; the German
// sharp s, the common one, does become SS.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

struct CodePoint {
  char32_t value;  // of an invalid byte: kInvalidByte + the byte
  size_t bytes;
};
inline constexpr char32_t kInvalidByte = 0x110000;

CodePoint code_point_at(std::string_view text, size_t byte);  // byte < text.size()
size_t count_code_points(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);  // one view for each code point

bool is_space(char32_t value);
bool is_digit(char32_t value);
bool is_printable(char32_t value);  // what repr shows as it is; code points not yet assigned count as printable

enum class Side { left, right, both };
std::string_view strip(std::string_view text, Side side);                          // whitespace
std::string_view strip(std::string_view text, Side side, std::string_view chars);  // any of these code points

inline constexpr size_t kNowhere = std::string_view::npos;
// In bytes. The time is linear, whatever the texts: the library's find and rfind can take the product of the lengths.
size_t find(std::string_view text, std::string_view part, size_t from = 0);
size_t find_last(std::string_view text, std::string_view part);

// At most `most` cuts; pieces are views into text. Separators are not empty.
std::vector<std::string_view> split_at_spaces(std::string_view text, size_t most);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, size_t most = kNowhere);
std::vector<std::string_view> split_at_from_right(std::string_view text, std::string_view separator, size_t most);
std::vector<std::string_view> split_lines(std::string_view text, size_t most);
std::string_view take_line(std::string_view& text);  // the first line of a text that is not empty, which loses it

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_capitalized(std::string_view text);        // the first in upper case, the rest in lower
std::string to_title(std::string_view text);              // str.title: letters after a non-letter in upper case
std::string to_words_capitalized(std::string_view text);  // the title filter: words begin after spaces and ( { [ < -

std::string escape_html(std::string_view text);

}  // namespace quire::jinja
