// The alphabet of byte-level vocabularies: each of the 256 bytes as one printable character, so that files can hold any
// token as readable text. Printable bytes of Latin-1 stand for themselves; the others, in order, are U+0100 and up.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quire::text {

std::string letters_of_bytes(std::string_view bytes);
std::optional<std::string> bytes_of_letters(std::string_view letters);  // none: a character is not in the alphabet

}  // namespace quire::text
