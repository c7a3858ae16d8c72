#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

namespace quire {
namespace {

using State = Utf8Char::State;

// What a first byte promises: the length of its character, and the bounds of the second byte, which keep out overlong
// forms, surrogates and codes past U+10FFFF. All later bytes lie between 0x80 and 0xBF.
struct Lead {
  size_t bytes;  // 0: no character begins so
  uint8_t second_least;
  uint8_t second_most;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char read_beyond_ascii(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const Lead lead = lead_of(at(0));
  if (lead.bytes == 0) return {State::broken, 1, kReplacement};
  char32_t code = at(0) & (0xFF >> (lead.bytes + 1));
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == bytes.size()) return {State::cut, i, kReplacement};
    const uint8_t least = i == 1 ? lead.second_least : 0x80, most = i == 1 ? lead.second_most : 0xBF;
    if (at(i) < least || at(i) > most) return {State::broken, i, kReplacement};
    code = code << 6 | (at(i) & 0x3F);
  }
  return {State::whole, lead.bytes, code};
}

void append_utf8(std::string& text, char32_t code) {
  constexpr char32_t kLeads[] = {0x00, 0xC0, 0xE0, 0xF0};
  const int following = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  text += static_cast<char>(kLeads[following] | code >> 6 * following);
  for (int i = following - 1; i >= 0; --i) text += static_cast<char>(0x80 | (code >> 6 * i & 0x3F));
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Char next = read_utf8(bytes);
    if (next.state != State::whole) return false;
    bytes.remove_prefix(next.bytes);
  }
  return true;
}

std::string repaired_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Char next = read_utf8(bytes);
    if (next.state == State::whole)
      text += bytes.substr(0, next.bytes);
    else
      append_utf8(text, kReplacement);
    bytes.remove_prefix(next.bytes);
  }
  return text;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

}  // namespace quire
