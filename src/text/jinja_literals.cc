#include "text/jinja_literals.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

// Digits that may be parted by single underscores: how many bytes they take.
size_t digits_at(std::string_view text, size_t at, int base) {
  size_t end = at;
  while (end < text.size()) {
    const size_t digit = end > at && text[end] == '_' ? end + 1 : end;
    if (digit >= text.size() || digit_value(text[digit]) >= base) break;
    end = digit + 1;
  }
  return end - at;
}

std::string without_underscores(std::string_view text) {
  std::string result(text);
  std::erase(result, '_');
  return result;
}

// The bytes of a fraction and an exponent after `whole` bytes of digits; 0 when there is neither.
size_t real_part(std::string_view text, size_t whole) {
  size_t end = whole;
  if (end < text.size() && text[end] == '.')
    if (const size_t digits = digits_at(text, end + 1, 10)) end += 1 + digits;
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    const bool sign = end + 1 < text.size() && (text[end + 1] == '+' || text[end + 1] == '-');
    const size_t digits = digits_at(text, end + 1 + sign, 10);
    if (digits > 0) end += 1 + sign + digits;
  }
  return end - whole;
}

Integer integer_from(std::string_view digits, int base, int line) {
  Integer value = 0;
  for (const char digit : digits) {
    const bool overflow = __builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
                          __builtin_add_overflow(value, static_cast<Integer>(digit_value(digit)), &value);
    if (overflow) fail_at(line, "an integer of more than 127 bits");
  }
  return value;
}

Number read_real(std::string_view text, int line) {
  const std::string digits = without_underscores(text);
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec != std::errc()) fail_at(line, "the number ", digits, " is out of range");
  return {TokenKind::real, Value::real(value), text.size()};
}

int prefixed_base(std::string_view text) {
  if (text.size() < 2 || text[0] != '0') return 0;
  const char letter = static_cast<char>(text[1] | 0x20);
  return letter == 'b' ? 2 : letter == 'o' ? 8 : letter == 'x' ? 16 : 0;
}

class Unescaper {
 public:
  Unescaper(std::string_view literal, int line) : literal_(literal), line_(line) {}

  std::string run() {
    while (at_ < literal_.size()) {
      if (literal_[at_] == '\\' && at_ + 1 < literal_.size())
        resolve();
      else
        result_ += literal_[at_++];
    }
    return std::move(result_);
  }

 private:
  void resolve() {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = literal_[at_ + 1];
    if (const size_t letter = kLetters.find(c); letter != kLetters.npos) {
      result_ += kMeanings[letter];
      at_ += 2;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      at_ += 2;
      add_code_point(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      at_ += 1;
      add_octal();
    } else if (c == 'N') {
      fail_at(line_, "characters by name (\\N) are not supported");
    } else {
      result_ += '\\';  // not an escape: both characters stay
      at_ += 1;
    }
  }

  void add_code_point(size_t digits) {
    const std::string_view hex = literal_.substr(at_, digits);
    const bool whole =
        hex.size() == digits && std::all_of(hex.begin(), hex.end(), [](char c) { return digit_value(c) < 16; });
    if (!whole) fail_at(line_, "an escape in a string needs ", digits, " hexadecimal digits");
    append(integer_from(hex, 16, line_));
    at_ += digits;
  }

  void add_octal() {
    size_t digits = 0;
    while (digits < 3 && at_ + digits < literal_.size() && digit_value(literal_[at_ + digits]) < 8) ++digits;
    append(integer_from(literal_.substr(at_, digits), 8, line_));
    at_ += digits;
  }

  void append(Integer value) {
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    if (surrogate || value > 0x10ffff) fail_at(line_, "an escape in a string names no character");
    append_code_point(result_, static_cast<char32_t>(value));
  }

  std::string_view literal_;
  int line_;
  size_t at_ = 0;
  std::string result_;
};

}  // namespace

std::string resolve_escapes(std::string_view literal, int line) { return Unescaper(literal, line).run(); }

Number read_number(std::string_view text, bool after_dot, int line) {
  const size_t all_digits = digits_at(text, 0, 10);
  if (const size_t more = after_dot ? 0 : real_part(text, all_digits))
    return read_real(text.substr(0, all_digits + more), line);
  const int base = prefixed_base(text);
  if (const size_t digits = base ? digits_at(text, 2, base) : 0)
    return {TokenKind::integer, Value::integer(integer_from(without_underscores(text.substr(2, digits)), base, line)),
            2 + digits};
  // A leading zero stands for itself alone.
  const size_t digits = text[0] == '0' ? std::max<size_t>(digits_at(text, 0, 1), 1) : all_digits;
  return {TokenKind::integer, Value::integer(integer_from(without_underscores(text.substr(0, digits)), 10, line)),
          digits};
}

}  // namespace quire::text::jinja
