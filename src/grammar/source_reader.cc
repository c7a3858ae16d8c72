#include "grammar/source_reader.h"

#include <utility>

namespace quire::grammar {
namespace {

std::u32string codes_of(const std::string& language, std::string_view source) {
  try {
    return code_points(source);
  } catch (const Refused& error) {
    throw Refused(cat(language, ": ", error.what()));
  }
}

int digit_value(char32_t code) {
  if (code >= U'0' && code <= U'9') return static_cast<int>(code - U'0');
  if (code >= U'a' && code <= U'f') return static_cast<int>(code - U'a' + 10);
  if (code >= U'A' && code <= U'F') return static_cast<int>(code - U'A' + 10);
  return 16;
}

}  // namespace

SourceReader::SourceReader(std::string language, std::string_view source, int most_depth)
    : language_(std::move(language)), codes_(codes_of(language_, source)), most_depth_(most_depth) {}

char32_t SourceReader::take() {
  if (at_end()) fail("something is missing");
  return codes_[at_++];
}

bool SourceReader::take_if(char32_t expected) {
  if (at_end() || peek() != expected) return false;
  ++at_;
  return true;
}

bool SourceReader::take_if(std::u32string_view expected) {
  if (!looking_at(expected)) return false;
  at_ += expected.size();
  return true;
}

int32_t SourceReader::take_number(const char* what) {
  if (digit_value(peek()) > 9) fail(what, " is missing");
  int32_t number = 0;
  while (digit_value(peek()) <= 9) {
    number = number * 10 + digit_value(peek());
    if (number > kMostRepeats) fail(what, " is over ", kMostRepeats);
    ++at_;
  }
  return number;
}

char32_t SourceReader::take_hexadecimal(int digits) {
  char32_t code = 0;
  for (int i = 0; i < digits; ++i) {
    const int value = digit_value(peek());
    if (value > 15) fail(digits, " hexadecimal digits are expected");
    code = code * 16 + static_cast<char32_t>(value);
    ++at_;
  }
  return take_character(code);
}

std::optional<char32_t> SourceReader::take_usual_escape(char32_t letter) {
  switch (letter) {
    case U'n':
      return U'\n';
    case U'r':
      return U'\r';
    case U't':
      return U'\t';
    case U'f':
      return U'\f';
    case U'v':
      return U'\v';
    case U'x':
      return take_hexadecimal(2);
    default:
      return std::nullopt;
  }
}

char32_t SourceReader::take_character(char32_t code) {
  if (code > 0x10FFFF || code_set({{code, code}}).empty()) fail("a character that no text may hold stands before");
  return code;
}

void SourceReader::enter() {
  if (++depth_ > most_depth_) fail("brackets are nested deeper than ", most_depth_);
}

}  // namespace quire::grammar
