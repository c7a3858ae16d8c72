#include "base/in_quotes.h"

#include <cstdint>

#include "base/check.h"
#include "base/utf8.h"

namespace quire {
namespace {

// Control characters, marks that turn around the order of what is shown, and marks that nobody sees are not.
bool is_printable(char32_t code) {
  const auto within = [&](char32_t first, char32_t last) { return code >= first && code <= last; };
  return !(code < 0x20 || within(0x7F, 0x9F) || code == 0x061C || code == 0x200B || within(0x200E, 0x200F) ||
           within(0x2028, 0x202E) || within(0x2066, 0x2069));
}

// Bytes of the printable character that the text begins with; 0 when there is none.
size_t printable_length(std::string_view text) {
  const Utf8Char first = read_utf8(text);
  return first.state == Utf8Char::State::whole && is_printable(first.code) ? first.bytes : 0;
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
