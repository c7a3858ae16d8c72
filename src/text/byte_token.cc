#include "text/byte_token.h"

#include <array>

#include "base/utf8.h"

namespace quire::text {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr char32_t kFirstOther = 0x100;
constexpr int16_t kNoByte = -1;

struct Alphabet {
  std::array<char32_t, 256> letter{};
  std::array<int16_t, 2 * 256> byte{};  // by letter, all of which are below U+0200

  constexpr Alphabet() {
    byte.fill(kNoByte);
    char32_t other = kFirstOther;
    for (int b = 0; b < 256; ++b) {
      letter[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : other++;
      byte[letter[b]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) append_utf8(letters, kAlphabet.letter[static_cast<uint8_t>(byte)]);
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  bytes.reserve(letters.size());
  while (!letters.empty()) {
    const Utf8Char next = read_utf8(letters);
    if (next.code >= kAlphabet.byte.size() || kAlphabet.byte[next.code] == kNoByte) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[next.code]);
    letters.remove_prefix(next.bytes);
  }
  return bytes;
}

}  // namespace quire::text
