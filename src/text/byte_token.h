// Tokens that stand for one byte, as vocabularies with byte fallback write them: <0x00> to <0xFF>.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

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
