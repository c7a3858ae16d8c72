#include "jinja/strings.h"

#include <string.h>  // memmem, memcpy
#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace quire::jinja {
namespace {

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool contains(std::string_view chars, std::string_view character) { return find(chars, character) != kNowhere; }

// How many bytes at the front are known to be ASCII, looked at eight at a time.
size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (uint64_t word; at + sizeof word <= text.size(); at += sizeof word) {
    memcpy(&word, text.data() + at, sizeof word);
    if (word & 0x8080808080808080) break;
  }
  return at;
}

// The start of the last code point of a text that is not empty.
size_t last_start(std::string_view text) {
  const size_t lowest = text.size() > 4 ? text.size() - 4 : 0;
  for (size_t at = text.size() - 1;; --at) {
    if (code_point_at(text, at).bytes == text.size() - at && (text[at] & 0xc0) != 0x80) return at;
    if (at == lowest) return text.size() - 1;
  }
}

template <class Drops>
std::string_view strip_while(std::string_view text, Side side, const Drops& drops) {
  while (side != Side::right && !text.empty()) {
    const size_t bytes = code_point_at(text, 0).bytes;
    if (!drops(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (side != Side::left && !text.empty()) {
    const size_t start = last_start(text);
    if (!drops(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

bool starts_with_space(std::string_view character) { return is_space(code_point_at(character, 0).value); }

// Calls body(character) for each code point, without a list of them.
template <class Body>
void for_each_character(std::string_view text, const Body& body) {
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    bytes = code_point_at(text, at).bytes;
    body(text.substr(at, bytes));
  }
}

enum class Case { upper, lower, title };

void append_in_case(std::string& result, std::string_view character, Case wanted) {
  const char32_t value = code_point_at(character, 0).value;
  if (value >= kInvalidByte) {
    result += character;
  } else if (value == 0xdf && wanted != Case::lower) {
    result += wanted == Case::upper ? "SS" : "Ss";
  } else {
    const auto mapped = wanted == Case::upper   ? utf8proc_toupper(static_cast<utf8proc_int32_t>(value))
                        : wanted == Case::lower ? utf8proc_tolower(static_cast<utf8proc_int32_t>(value))
                                                : utf8proc_totitle(static_cast<utf8proc_int32_t>(value));
    append_utf8(result, static_cast<char32_t>(mapped));
  }
}

utf8proc_category_t category(char32_t value) {
  return value < kInvalidByte ? utf8proc_category(static_cast<utf8proc_int32_t>(value)) : UTF8PROC_CATEGORY_CN;
}

std::string in_case(std::string_view text, Case wanted) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](std::string_view character) { append_in_case(result, character, wanted); });
  return result;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t byte) {
  const Utf8Char next = read_utf8(text.substr(byte));
  if (next.state == Utf8Char::State::whole) return {next.code, next.bytes};
  return {kInvalidByte + static_cast<unsigned char>(text[byte]), 1};
}

size_t count_code_points(std::string_view text) {
  const size_t ascii = ascii_prefix(text);
  size_t count = ascii;
  for (size_t at = ascii; at < text.size(); at += code_point_at(text, at).bytes) ++count;
  return count;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += result.back().size())
    result.push_back(text.substr(at, code_point_at(text, at).bytes));
  return result;
}

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1c && c <= 0x1f); }

bool is_digit(char32_t c) {
  const bool raised = c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079);
  return category(c) == UTF8PROC_CATEGORY_ND || raised || (c >= 0x2080 && c <= 0x2089);
}

bool is_printable(char32_t value) {
  switch (category(value)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return value == ' ';
    default:
      return value < kInvalidByte;
  }
}

std::string_view strip(std::string_view text, Side side) { return strip_while(text, side, starts_with_space); }

std::string_view strip(std::string_view text, Side side, std::string_view chars) {
  std::vector<std::string_view> dropped = characters(chars);
  std::sort(dropped.begin(), dropped.end());
  return strip_while(text, side, [&](std::string_view character) {
    return std::binary_search(dropped.begin(), dropped.end(), character);
  });
}

size_t find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return kNowhere;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : kNowhere;
}

size_t find_last(std::string_view text, std::string_view part) {
  const std::string backwards(text.rbegin(), text.rend()), part_backwards(part.rbegin(), part.rend());
  const size_t found = find(backwards, part_backwards);
  return found == kNowhere ? kNowhere : text.size() - found - part.size();
}

std::vector<std::string_view> split_at_spaces(std::string_view text, size_t most) {
  std::vector<std::string_view> pieces;
  for (text = strip(text, Side::left); !text.empty(); text = strip(text, Side::left)) {
    if (pieces.size() == most) {
      pieces.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_space(code_point_at(text, end).value)) end += code_point_at(text, end).bytes;
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return pieces;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, size_t most) {
  std::vector<std::string_view> pieces;
  size_t start = 0;
  while (pieces.size() < most) {
    const size_t end = find(text, separator, start);
    if (end == kNowhere) break;
    pieces.push_back(text.substr(start, end - start));
    start = end + separator.size();
  }
  pieces.push_back(text.substr(start));
  return pieces;
}

std::vector<std::string_view> split_at_from_right(std::string_view text, std::string_view separator, size_t most) {
  const std::string backwards(text.rbegin(), text.rend()), separator_backwards(separator.rbegin(), separator.rend());
  std::vector<std::string_view> pieces = split_at(backwards, separator_backwards, most);
  for (std::string_view& piece : pieces) {
    const size_t end = text.size() - static_cast<size_t>(piece.data() - backwards.data());
    piece = text.substr(end - piece.size(), piece.size());
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_lines(std::string_view text, size_t most) {
  std::vector<std::string_view> lines;
  while (!text.empty() && lines.size() < most) lines.push_back(take_line(text));
  if (!text.empty()) lines.push_back(text);
  return lines;
}

std::string_view take_line(std::string_view& text) {
  size_t end = 0, after = 0;
  while (end == after && after < text.size()) {
    const auto [value, bytes] = code_point_at(text, after);
    after += bytes;
    if (!is_line_end(value)) end = after;
    if (value == '\r' && text.substr(after).starts_with('\n')) ++after;
  }
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(after);
  return line;
}

std::string to_upper(std::string_view text) { return in_case(text, Case::upper); }
std::string to_lower(std::string_view text) { return in_case(text, Case::lower); }

std::string to_capitalized(std::string_view text) {
  std::string result;
  for_each_character(text, [&](std::string_view character) {
    append_in_case(result, character, result.empty() ? Case::title : Case::lower);
  });
  return result;
}

std::string to_title(std::string_view text) {
  std::string result;
  bool after_letter = false;
  for_each_character(text, [&](std::string_view character) {
    append_in_case(result, character, after_letter ? Case::lower : Case::title);
    const auto kind = category(code_point_at(character, 0).value);
    after_letter = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LT;
  });
  return result;
}

std::string to_words_capitalized(std::string_view text) {
  std::string result;
  bool at_start = true;
  for_each_character(text, [&](std::string_view character) {
    append_in_case(result, character, at_start ? Case::upper : Case::lower);
    at_start = starts_with_space(character) || contains("-({[<", character);
  });
  return result;
}

std::string escape_html(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    static constexpr std::string_view kSpecial = "&<>'\"", kNames[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const size_t at = kSpecial.find(c);
    at == kSpecial.npos ? result.push_back(c) : void(result += kNames[at]);
  }
  return result;
}

}  // namespace quire::jinja
