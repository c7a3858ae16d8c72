#include "text/jinja_format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

constexpr int kMostPrecision = 400;  // digits of a number; more would only be zeros
constexpr size_t kMostSize = size_t{1} << 30;

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

std::string in_base(Integer value, unsigned base, bool upper) {
  static constexpr std::string_view kLower = "0123456789abcdef", kUpper = "0123456789ABCDEF";
  std::string digits;
  for (auto rest = static_cast<unsigned __int128>(value); rest != 0; rest /= base)
    digits.insert(digits.begin(), (upper ? kUpper : kLower)[static_cast<size_t>(rest % base)]);
  return digits.empty() ? "0" : digits;
}

std::string grouped(std::string digits, char separator) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, separator);
  return digits;
}

std::string sign_of(const FormatSpec& spec, bool negative) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

std::string pad_number(Machine& machine, const FormatSpec& spec, bool negative, std::string digits) {
  if (spec.group) digits = grouped(std::move(digits), spec.group);
  const std::string sign = sign_of(spec, negative);
  if (spec.align != '=') return pad(machine, spec, sign + digits, '>');
  FormatSpec inner = spec;
  inner.align = '>';
  inner.width = spec.width > sign.size() ? spec.width - sign.size() : 0;
  return sign + pad(machine, inner, std::move(digits), '>');
}

std::string format_real(Machine& machine, const FormatSpec& spec, double value) {
  const bool percent = spec.type == '%';
  const double size = std::fabs(value) * (percent ? 100 : 1);
  if (spec.type == 0 && spec.precision < 0) return pad_number(machine, spec, std::signbit(value), show_real(size));
  const char type = spec.type == 0 || spec.type == 'n' ? 'g' : percent ? 'f' : spec.type;
  check(std::string_view("eEfFgG").find(type) != std::string_view::npos, "a number has no format '",
        std::string(1, type), "'");
  const char form[] = {'%', '.', '*', type, 0};
  std::string digits(static_cast<size_t>(kMostPrecision) + 400, 0);
  const int precision = std::min(spec.precision < 0 ? 6 : spec.precision, kMostPrecision);
  digits.resize(static_cast<size_t>(std::snprintf(digits.data(), digits.size(), form, precision, size)));
  return pad_number(machine, spec, std::signbit(value), digits + (percent ? "%" : ""));
}

std::string format_integer(Machine& machine, const FormatSpec& spec, Integer value) {
  const bool negative = value < 0;
  const Integer size = negative ? *negate(Value::integer(value)).integer() : value;
  const std::string prefix = spec.alternate ? std::string("0") + spec.type : "";
  const auto at_least = [&](std::string digits) {  // a precision is the least number of digits
    const size_t least = static_cast<size_t>(std::max(spec.precision, 0));
    machine.meter.check_bytes(least);
    return digits.size() < least ? std::string(least - digits.size(), '0') + digits : digits;
  };
  switch (spec.type) {
    case 0:
    case 'd':
    case 'i':
    case 'u':
    case 'n':
      return pad_number(machine, spec, negative, at_least(to_string(size)));
    case 'x':
    case 'X':
      return pad_number(machine, spec, negative, prefix + in_base(size, 16, spec.type == 'X'));
    case 'o':
      return pad_number(machine, spec, negative, prefix + in_base(size, 8, false));
    case 'b':
      return pad_number(machine, spec, negative, prefix + in_base(size, 2, false));
    default:
      return format_real(machine, spec, static_cast<double>(value));
  }
}

std::string format_character(Machine& machine, const FormatSpec& spec, Integer value) {
  const bool valid = value >= 0 && value < 0x110000 && !(value >= 0xd800 && value < 0xe000);
  check(valid, "'c' in a format needs a character's number");
  std::string text;
  append_code_point(text, static_cast<char32_t>(value));
  return pad(machine, spec, std::move(text), '<');
}

std::string shortened(std::string text, int precision) {
  size_t end = 0;
  for (int i = 0; i < precision && end < text.size(); ++i) end += code_point_at(text, end).bytes;
  text.resize(end);
  return text;
}

std::string format_text(Machine& machine, const FormatSpec& spec, std::string text) {
  check(spec.type == 0 || spec.type == 's', "a string has no format '", std::string(1, spec.type), "'");
  if (spec.precision >= 0) text = shortened(std::move(text), spec.precision);
  return pad(machine, spec, std::move(text), '<');
}

}  // namespace

size_t read_size(std::string_view text, size_t& at) {
  size_t size = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    size = size * 10 + static_cast<size_t>(text[at] - '0');
    check(size <= kMostSize, "a format's width or precision is too large");
  }
  return size;
}

FormatSpec parse_spec(std::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const size_t first = text.empty() ? 0 : code_point_at(text, 0).bytes;
  if (first < text.size() && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    at = first;
  }
  const auto take = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != any.npos ? text[at++] : char{0};
  };
  spec.align = take("<>^=");
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") && !spec.align) {
    spec.fill.assign(1, '0');
    spec.align = '=';
  }
  spec.width = read_size(text, at);
  spec.group = take(",_");
  if (take(".")) spec.precision = static_cast<int>(read_size(text, at));
  spec.type = take("sdbnoxXceEfFgG%");
  check(at == text.size(), "a format of the form '", text, "' is not supported");
  return spec;
}

std::string pad(Machine& machine, const FormatSpec& spec, std::string text, char usual_align) {
  const size_t size = count_code_points(text);
  if (size >= spec.width) return text;
  const size_t missing = spec.width - size;
  machine.meter.check_bytes(text.size() + missing * spec.fill.size());
  const char align = spec.align && spec.align != '=' ? spec.align : usual_align;
  const size_t before = align == '<' ? 0 : align == '>' ? missing : missing / 2;
  std::string result;
  for (size_t i = 0; i < before; ++i) result += spec.fill;
  result += text;
  for (size_t i = before; i < missing; ++i) result += spec.fill;
  return result;
}

std::string format_value(Machine& machine, const FormatSpec& spec, const Value& value) {
  if (value.integer() && spec.type == 'c') return format_character(machine, spec, *value.integer());
  if (value.integer()) return format_integer(machine, spec, *value.integer());
  if (value.real()) return format_real(machine, spec, *value.real());
  return format_text(machine, spec, show(machine.meter, value));
}

}  // namespace quire::text::jinja
