#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

constexpr double kMostInteger = 1e38;  // below 2^127
constexpr int kMostDigits = 300;       // a double has no digits past these

// What Python reads as a number: whitespace around it, a sign, underscores between digits.
std::string number_text(std::string_view text) {
  std::string result(strip(text, Side::both));
  const bool odd = result.starts_with('_') || result.ends_with('_') || result.find("__") != std::string::npos;
  if (!odd) std::erase(result, '_');
  if (result.starts_with('+') && !result.substr(1).starts_with('-')) result.erase(0, 1);
  return result;
}

std::optional<double> read_real(std::string_view text) {
  const std::string number = number_text(text);
  double value = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool whole = read.ptr == number.data() + number.size() && !number.empty();
  if (!whole || read.ec != std::errc()) return std::nullopt;
  return value;
}

// The base that a prefix names: 0x, 0o, 0b; 0: there is none.
int named_base(std::string_view digits) {
  if (digits.size() < 2 || digits[0] != '0') return 0;
  switch (digits[1]) {
    case 'x':
    case 'X':
      return 16;
    case 'o':
    case 'O':
      return 8;
    case 'b':
    case 'B':
      return 2;
    default:
      return 0;
  }
}

// Digits without a prefix; underscores may stand between them. More than 64 bits throw.
std::optional<Integer> read_digits(std::string digits, int base) {
  const bool odd = digits.starts_with('_') || digits.ends_with('_') || digits.find("__") != std::string::npos;
  if (odd) return std::nullopt;
  std::erase(digits, '_');
  uint64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  const bool whole = read.ptr == digits.data() + digits.size() && !digits.empty();
  check(!whole || read.ec != std::errc::result_out_of_range, "int: '", digits, "' has more than 64 bits");
  return whole && read.ec == std::errc() ? std::optional<Integer>(value) : std::nullopt;
}

// As Python's int(text, base): whitespace around it, a sign, a prefix that agrees with the base. Base 0 is the prefix's,
// and without one 10, where only zero may begin with 0.
std::optional<Integer> read_integer(std::string_view text, Integer base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string_view digits = strip(text, Side::both);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const int named = named_base(digits);
  const bool has_prefix = named != 0 && (base == 0 || base == named);
  if (has_prefix) digits.remove_prefix(digits.substr(2).starts_with('_') ? 3 : 2);
  const auto value = read_digits(std::string(digits), has_prefix ? named : base == 0 ? 10 : static_cast<int>(base));
  if (!value || (base == 0 && !has_prefix && digits.starts_with('0') && *value != 0)) return std::nullopt;
  return negative ? -*value : *value;
}

std::optional<Integer> truncated(double value) {
  if (std::isnan(value)) return std::nullopt;
  check(std::fabs(value) < kMostInteger, "int: ", show_real(value), " is no integer of 127 bits");
  return static_cast<Integer>(value);
}

Value to_int(Machine&, const Value& input, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  input.check_defined();
  const Value otherwise = bound.value_or(0, Value::integer(0));
  if (const auto integer = input.integer()) return Value::integer(*integer);
  const Integer base = bound.integer(1, 10);
  std::optional<Integer> result;
  if (const Text* text = input.text()) {
    result = read_integer(text->bytes, base);
    const auto real = result ? std::nullopt : read_real(text->bytes);
    if (real && std::isfinite(*real)) result = truncated(*real);
  } else if (input.real()) {
    result = truncated(*input.real());
  }
  return result ? Value::integer(*result) : otherwise;
}

Value to_float(Machine&, const Value& input, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  input.check_defined();
  const auto result = input.text() ? read_real(input.text()->bytes) : input.number();
  return result ? Value::real(*result) : bound.value_or(0, Value::real(0));
}

Value absolute(Machine&, const Value& input, const Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  input.check_defined();
  check(input.number().has_value(), "abs needs a number, not ", input.type());
  if (const auto integer = input.integer()) return *integer < 0 ? negate(input) : Value::integer(*integer);
  return Value::real(std::fabs(*input.number()));
}

// To nearest, ties to even, of the exact binary value: as printing it rounds.
double rounded(double value, int digits) {
  if (!std::isfinite(value) || digits > kMostDigits) return value;
  if (digits < 0) return std::nearbyint(value / std::pow(10.0, -digits)) * std::pow(10.0, -digits);
  char buffer[kMostDigits + 320];
  const int length = std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  double result = value;
  std::from_chars(buffer, buffer + length, result);
  return result;
}

Value round(Machine&, const Value& input, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  input.check_defined();
  check(input.number().has_value(), "round needs a number, not ", input.type());
  const Integer precision = bound.integer(0, 0);
  check(precision >= -kMostDigits && precision <= kMostDigits, "round: 'precision' is out of range");
  const std::string method = bound.text(1, "common");
  check(method == "common" || method == "ceil" || method == "floor", "round: 'method' must be common, ceil or floor");
  const double value = *input.number();
  const double factor = std::pow(10.0, static_cast<double>(precision));
  if (method != "common")
    return Value::real((method == "ceil" ? std::ceil(value * factor) : std::floor(value * factor)) / factor);
  if (input.integer() && precision >= 0) return Value::integer(*input.integer());
  const double result = rounded(value, static_cast<int>(precision));
  return input.integer() ? Value::integer(static_cast<Integer>(result)) : Value::real(result);
}

constexpr FilterEntry kNumberFilters[] = {{"abs", absolute}, {"float", to_float}, {"int", to_int}, {"round", round}};

}  // namespace

std::span<const FilterEntry> number_filters() { return kNumberFilters; }

}  // namespace quire::text::jinja
