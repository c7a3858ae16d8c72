// Bytes in base 64 (RFC 4648), padded.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

inline std::string in_base64(std::string_view bytes) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string letters;
  letters.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view three = bytes.substr(at, 3);
    uint32_t bits = 0;
    for (const char byte : three) bits = bits << 8 | static_cast<uint8_t>(byte);
    bits <<= 8 * (3 - three.size());
    for (size_t i = 0; i < 4; ++i) letters += i <= three.size() ? kLetters[bits >> (18 - 6 * i) & 63] : '=';
  }
  return letters;
}

}  // namespace quire
