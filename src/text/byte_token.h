// Bytes as vocabularies write them, so that files can hold any token as readable text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

// The alphabet of byte-level vocabularies: each of the 256 bytes as one printable character. Printable bytes of Latin-1
// stand for themselves; the others, in order, are U+0100 and up.
std::string letters_of_bytes(std::string_view bytes);
std::optional<std::string> bytes_of_letters(std::string_view letters);  // none: a character is not in the alphabet

// Tokens that stand for one byte, in vocabularies with byte fallback: <0x00> to <0xFF>.
inline constexpr std::string_view kHexDigits = "0123456789ABCDEF";

inline std::string byte_token(uint8_t byte) {
  return std::string("<0x") + kHexDigits[byte >> 4] + kHexDigits[byte & 15] + ">";
}

inline std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const size_t high = kHexDigits.find(token[3]), low = kHexDigits.find(token[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<uint8_t>(high << 4 | low);
}

}  // namespace quire::text
