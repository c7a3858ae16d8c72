#include "grammar/json_numbers.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/refused.h"

namespace quire::grammar {
namespace {

constexpr int32_t kMostDigits = 18, kMostFraction = 17;
constexpr int64_t kMostInteger = 999'999'999'999'999'999;

Expression digit(char first, char last) {
  return set_of(first <= last ? CodeSet{{static_cast<char32_t>(first), static_cast<char32_t>(last)}} : CodeSet{});
}
Expression digits(int32_t least, int32_t most) { return repeat(digit('0', '9'), least, most); }
Expression digits(size_t count) { return digits(static_cast<int32_t>(count), static_cast<int32_t>(count)); }
Expression one(char c) { return text(std::string_view(&c, 1)); }
char above(char c) { return static_cast<char>(c + 1); }
char below(char c) { return static_cast<char>(c - 1); }

// As many digits as in `bound`, not below or not above it.
Expression same_length(std::string_view bound, bool upwards) {
  if (bound.empty()) return text("");
  const std::string_view rest = bound.substr(1);
  const Expression beyond = upwards ? digit(above(bound[0]), '9') : digit('0', below(bound[0]));
  return choice({sequence({one(bound[0]), same_length(rest, upwards)}), sequence({beyond, digits(rest.size())})});
}

// Both of one length, least <= most.
Expression same_length(std::string_view least, std::string_view most) {
  if (least.empty()) return text("");
  const std::string_view low = least.substr(1), high = most.substr(1);
  if (least[0] == most[0]) return sequence({one(least[0]), same_length(low, high)});
  return choice({sequence({one(least[0]), same_length(low, true)}),
                 sequence({digit(above(least[0]), below(most[0])), digits(low.size())}),
                 sequence({one(most[0]), same_length(high, false)})});
}

// Whole numbers from 0 on, least <= most.
Expression natural_between(int64_t least, int64_t most) {
  const std::string low = std::to_string(least), high = std::to_string(most);
  if (low.size() == high.size()) return same_length(low, high);
  const auto shorter = static_cast<int32_t>(low.size()), longer = static_cast<int32_t>(high.size());
  std::vector<Expression> lengths;
  lengths.push_back(same_length(low, std::string(low.size(), '9')));
  if (longer - shorter > 1) lengths.push_back(sequence({digit('1', '9'), digits(shorter, longer - 2)}));
  lengths.push_back(same_length(cat("1", std::string(high.size() - 1, '0')), high));
  return choice(std::move(lengths));
}

// Digits after a whole part, as a set of texts: whether none at all is in it, and the others.
struct Fractions {
  bool none;
  Expression some;
};

Expression any_more() { return digits(0, kMostFraction); }
Fractions any_fraction() { return {.none = true, .some = digits(1, kMostFraction)}; }
Fractions above_zero() {
  return {.none = false, .some = sequence({repeat(one('0'), 0, kMostFraction), digit('1', '9'), any_more()})};
}

// The fractions that go on from digits already written.
Expression continued(const Fractions& fractions) {
  return fractions.none ? choice({text(""), fractions.some}) : fractions.some;
}

Fractions fractions_from(std::string_view least, bool exclusive) {
  if (least.empty()) return exclusive ? above_zero() : any_fraction();
  const Expression same = sequence({one(least[0]), continued(fractions_from(least.substr(1), exclusive))});
  return {.none = false, .some = choice({same, sequence({digit(above(least[0]), '9'), any_more()})})};
}

Fractions fractions_to(std::string_view most, bool exclusive) {
  if (most.empty()) return {.none = !exclusive, .some = exclusive ? nothing() : repeat(one('0'), 1, kMostFraction)};
  const Expression same = sequence({one(most[0]), continued(fractions_to(most.substr(1), exclusive))});
  return {.none = true, .some = choice({same, sequence({digit('0', below(most[0])), any_more()})})};
}

Fractions fractions_between(std::string_view least, bool least_exclusive, std::string_view most, bool most_exclusive) {
  if (least.empty() && !least_exclusive) return fractions_to(most, most_exclusive);
  if (most.empty()) return {.none = false, .some = nothing()};
  const char low = least.empty() ? '0' : least[0], high = most[0];
  const std::string_view low_rest = least.empty() ? least : least.substr(1), high_rest = most.substr(1);
  if (low == high) {
    const Fractions rest = fractions_between(low_rest, least_exclusive, high_rest, most_exclusive);
    return {.none = false, .some = sequence({one(low), continued(rest)})};
  }
  return {.none = false,
          .some = choice({sequence({one(low), continued(fractions_from(low_rest, least_exclusive))}),
                          sequence({digit(above(low), below(high)), any_more()}),
                          sequence({one(high), continued(fractions_to(high_rest, most_exclusive))})})};
}

Expression with_fraction(const Expression& whole, const Fractions& fractions) {
  const Expression fraction = sequence({text("."), fractions.some});
  return sequence({whole, fractions.none ? choice({text(""), fraction}) : fraction});
}

int64_t whole_part(const Bound& bound) { return std::stoll(bound.digits); }

// Numbers from 0 on.
Expression positive_between(const Bound& least, const std::optional<Bound>& most) {
  const int64_t low = whole_part(least), high = most ? whole_part(*most) : kMostInteger;
  if (most && low == high) {
    return with_fraction(text(least.digits),
                         fractions_between(least.fraction, least.exclusive, most->fraction, most->exclusive));
  }
  std::vector<Expression> parts;
  parts.push_back(with_fraction(text(least.digits), fractions_from(least.fraction, least.exclusive)));
  const int64_t last_whole = most ? high - 1 : high;
  if (low + 1 <= last_whole) parts.push_back(with_fraction(natural_between(low + 1, last_whole), any_fraction()));
  if (most) parts.push_back(with_fraction(text(most->digits), fractions_to(most->fraction, most->exclusive)));
  return choice(std::move(parts));
}

Bound zero(bool exclusive) { return {.digits = "0", .fraction = "", .exclusive = exclusive}; }

Bound negated(Bound bound) {
  bound.negative = !bound.negative;
  return bound;
}

// Of two positive bounds.
bool is_empty_range(const Bound& least, const Bound& most) {
  const int64_t low = whole_part(least), high = whole_part(most);
  if (low != high) return low > high;
  if (least.fraction != most.fraction) return least.fraction > most.fraction;
  return least.exclusive || most.exclusive;
}

// From 0 on: what of [least, most] is not negative.
std::optional<Expression> not_negative(const std::optional<Bound>& least, const std::optional<Bound>& most) {
  if (most && most->negative) return std::nullopt;
  const Bound from = least && !least->negative ? *least : zero(false);
  if (most && is_empty_range(from, *most)) return std::nullopt;
  return positive_between(from, most);
}

// Below 0: the mirror image, without 0 itself.
std::optional<Expression> negative(const std::optional<Bound>& least, const std::optional<Bound>& most) {
  if (least && !least->negative) return std::nullopt;
  const Bound from = most && (most->negative) ? negated(*most) : zero(true);
  std::optional<Bound> to;
  if (least) to = negated(*least);
  if (to && is_empty_range(from, *to)) return std::nullopt;
  return sequence({text("-"), positive_between(from, to)});
}

}  // namespace

Expression any_integer() {
  const Expression not_zero = sequence({repeat(one('-'), 0, 1), digit('1', '9'), digits(0, kMostDigits - 1)});
  return choice({text("0"), not_zero});
}

Expression any_number() {
  const Expression whole = choice({text("0"), sequence({digit('1', '9'), digits(0, kMostDigits - 1)})});
  const Expression fraction = repeat(sequence({text("."), digits(1, kMostFraction)}), 0, 1);
  const Expression sign = repeat(set_of({{U'+', U'+'}, {U'-', U'-'}}), 0, 1);
  const Expression exponent = repeat(sequence({set_of({{U'E', U'E'}, {U'e', U'e'}}), sign, digits(1, 2)}), 0, 1);
  return sequence({repeat(one('-'), 0, 1), whole, fraction, exponent});
}

std::optional<Expression> multiples_of(int64_t step) {
  constexpr int32_t kMostEnd = 3;
  int64_t power = 10;
  int32_t end = 1;
  for (; end < kMostEnd && power % step != 0; ++end) power *= 10;
  if (power % step != 0) return std::nullopt;
  std::vector<Expression> short_ones, ends;
  for (int64_t multiple = 0; multiple < power; multiple += step) {
    const std::string written = std::to_string(multiple);
    if (multiple > 0) short_ones.push_back(text(written));
    ends.push_back(text(std::string(end - written.size(), '0') + written));
  }
  short_ones.push_back(sequence({digit('1', '9'), digits(0, kMostDigits - end - 1), choice(std::move(ends))}));
  return choice({text("0"), sequence({repeat(one('-'), 0, 1), choice(std::move(short_ones))})});
}

Expression number_with(int32_t decimals) {
  const Expression whole = choice({text("0"), sequence({digit('1', '9'), digits(0, kMostDigits - 1)})});
  return sequence({repeat(one('-'), 0, 1), whole, repeat(sequence({text("."), digits(1, decimals)}), 0, 1)});
}

Expression integer_between(std::optional<int64_t> least, std::optional<int64_t> most) {
  const int64_t low = std::max(least.value_or(-kMostInteger), -kMostInteger);
  const int64_t high = std::min(most.value_or(kMostInteger), kMostInteger);
  check_input(low <= high, "no integer lies between the bounds");
  std::vector<Expression> parts;
  if (high >= 0) parts.push_back(natural_between(std::max<int64_t>(low, 0), high));
  if (low < 0) parts.push_back(sequence({text("-"), natural_between(high < 0 ? -high : 1, -low)}));
  return choice(std::move(parts));
}

Expression number_between(const std::optional<Bound>& least, const std::optional<Bound>& most) {
  if (!least && !most) return any_number();
  std::vector<Expression> parts;
  if (std::optional<Expression> part = not_negative(least, most)) parts.push_back(std::move(*part));
  if (std::optional<Expression> part = negative(least, most)) parts.push_back(std::move(*part));
  check_input(!parts.empty(), "no number lies between the bounds");
  return choice(std::move(parts));
}

}  // namespace quire::grammar
