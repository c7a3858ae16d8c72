#include "grammar/schema_numbers.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/refused.h"
#include "grammar/json_numbers.h"

namespace quire::grammar {
namespace {

// A bound, digit by digit. Beyond the digits that numbers have here it says nothing unless it is on the wrong side.
Bound bound_of(const Json& value, bool from_below, bool exclusive, const SchemaObject& schema) {
  const double size = value.get<double>();
  if (std::abs(size) >= 1e18) {
    if ((size < 0) != from_below) schema.fail("the bound ", written(value), " is too large,");
    return {.digits = std::string(18, '9'), .fraction = "", .negative = from_below, .exclusive = false};
  }
  std::string digits = is_whole(value) ? std::to_string(value.get<int64_t>()) : written(value);
  if (digits.find('e') != std::string::npos) schema.fail("the bound ", digits, " needs an exponent,");
  Bound bound{.digits = {}, .fraction = {}, .negative = digits.starts_with('-'), .exclusive = exclusive};
  if (bound.negative) digits.erase(0, 1);
  const size_t point = std::min(digits.find('.'), digits.size());
  bound.digits = digits.substr(0, point);
  if (point < digits.size()) bound.fraction = digits.substr(point + 1);
  return bound;
}

// The stricter of two bounds of one side, as doubles see them.
bool is_stricter(const Json& one, const Json& other, bool from_below, bool one_is_exclusive) {
  const double a = one.get<double>(), b = other.get<double>();
  if (a == b) return one_is_exclusive;
  return from_below ? a > b : a < b;
}

const Json* take_number(const char* keyword, SchemaObject& schema) {
  const Json* value = schema.take(keyword);
  if (value && !value->is_number()) schema.fail("\"", keyword, "\" must be a number");
  return value;
}

std::optional<Bound> read_bound(bool from_below, SchemaObject& schema) {
  const Json* inclusive = take_number(from_below ? "minimum" : "maximum", schema);
  const Json* exclusive = take_number(from_below ? "exclusiveMinimum" : "exclusiveMaximum", schema);
  if (!inclusive && !exclusive) return std::nullopt;
  const bool excludes = exclusive && (!inclusive || is_stricter(*exclusive, *inclusive, from_below, true));
  return bound_of(excludes ? *exclusive : *inclusive, from_below, excludes, schema);
}

// The whole number nearest to the bound on its inner side.
int64_t whole_bound(const Bound& bound, bool from_below) {
  const int64_t whole = std::stoll(bound.digits) * (bound.negative ? -1 : 1);
  if (bound.fraction.empty()) return whole + (bound.exclusive ? (from_below ? 1 : -1) : 0);
  if (from_below) return bound.negative ? whole : whole + 1;
  return bound.negative ? whole - 1 : whole;
}

// --- multiples

void leave_out_step(SchemaObject& schema) { schema.leave_out("multipleOf", "\"multipleOf\" is not supported there,"); }

// Whether all whole numbers are multiples: of 1, 0.5, 0.1.
bool is_step_of_all(const Json& step) {
  const double parts = 1 / step.get<double>();
  return parts >= 1 && parts <= 1e6 && std::abs(parts - std::round(parts)) < 1e-9;
}

// 2 for 0.01.
std::optional<int32_t> decimals_of(const Json& step) {
  constexpr int32_t kMostDecimals = 9;
  double power = 1;
  for (int32_t digits = 1; digits <= kMostDecimals; ++digits) {
    power /= 10;
    if (std::abs(step.get<double>() / power - 1) < 1e-9) return digits;
  }
  return std::nullopt;
}

std::optional<Expression> read_multiples(const Json& step, std::optional<int64_t> low, std::optional<int64_t> high) {
  constexpr int64_t kMostStep = 1'000'000, kMostListed = 1000;
  if (!is_whole(step) || step.get<double>() < 1 || step.get<double>() > kMostStep) return std::nullopt;
  const auto each = step.get<int64_t>();
  if (!low && !high) return multiples_of(each);
  if (!low || !high || *high / each - *low / each > kMostListed) return std::nullopt;
  std::vector<Expression> listed;
  for (int64_t i = *low / each - 1; i <= *high / each + 1; ++i)
    if (i * each >= *low && i * each <= *high) listed.push_back(text(std::to_string(i * each)));
  return listed.empty() ? std::nullopt : std::optional(choice(std::move(listed)));
}

template <class Make>
Expression between(const Make& make, const SchemaObject& schema) {
  try {
    return make();
  } catch (const Refused& error) {
    schema.fail(error.what());
  }
}

}  // namespace

Expression read_number(SchemaObject& schema) {
  const Json* step = take_number("multipleOf", schema);
  if (step && is_whole(*step)) return read_integer(schema);
  const std::optional<Bound> least = read_bound(true, schema), most = read_bound(false, schema);
  if (const auto digits = step && !least && !most ? decimals_of(*step) : std::nullopt) return number_with(*digits);
  if (step) leave_out_step(schema);
  return between([&] { return number_between(least, most); }, schema);
}

Expression read_integer(SchemaObject& schema) {
  const Json* step = take_number("multipleOf", schema);
  const std::optional<Bound> least = read_bound(true, schema), most = read_bound(false, schema);
  std::optional<int64_t> low, high;
  if (least) low = whole_bound(*least, true);
  if (most) high = whole_bound(*most, false);
  if (step && !is_step_of_all(*step)) {
    if (auto multiples = read_multiples(*step, low, high)) return *std::move(multiples);
    leave_out_step(schema);
  }
  if (!least && !most) return any_integer();
  return between([&] { return integer_between(low, high); }, schema);
}

}  // namespace quire::grammar
