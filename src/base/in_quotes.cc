#include "base/in_quotes.h"

#include <cstdint>

#include "base/check.h"

namespace quire {
namespace {

// Whether 0xe2 and these are a mark that turns around the order of what is shown, or one that nobody sees: U+200B, U+200E,
// U+200F, U+2028 to U+202E, U+2066 to U+2069.
bool is_hidden_mark(uint8_t second, uint8_t third) {
  if (second == 0x80) return third == 0x8b || third == 0x8e || third == 0x8f || (third >= 0xa8 && third <= 0xae);
  return second == 0x81 && third >= 0xa6 && third <= 0xa9;
}

// Bytes of the printable UTF-8 character that the text begins with; 0 when there is none. Control characters are not
// printable, those that take two bytes included.
size_t printable_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const uint8_t first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool is_control = first == 0xc2 && byte(1) < 0xa0;
  const bool is_overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool is_outside = (first == 0xed && byte(1) >= 0xa0) || (first == 0xf4 && byte(1) >= 0x90);
  const bool is_hidden = (first == 0xe2 && is_hidden_mark(byte(1), byte(2))) || (first == 0xd8 && byte(1) == 0x9c);
  return is_control || is_overlong || is_outside || is_hidden ? 0 : length;
}

std::string escape(char c) {
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  constexpr const char* kDigits = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

std::string in_quotes(std::string_view text, size_t most) {
  std::string shown = "\"";
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = printable_length(text.substr(at));
    const size_t taken = length == 0 ? 1 : length;
    if (at + taken > most) break;
    if (text[at] == '"' || text[at] == '\\') shown += '\\';
    shown += length == 0 ? escape(text[at]) : std::string(text.substr(at, length));
    at += taken;
  }
  shown += '"';
  return at == text.size() ? shown : cat(shown, "... (", text.size(), " bytes)");
}

std::string in_quotes_if_odd(std::string_view text, size_t most) {
  std::string quoted = in_quotes(text, most);
  return quoted == cat("\"", text, "\"") ? std::string(text) : quoted;
}

}  // namespace quire
