// Numbers as JSON writes them, and those between bounds: bounds become rules about digits.
//
// Errors   Refused: no number lies between the bounds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "grammar/rules.h"

namespace quire::grammar {

Expression any_number();
Expression any_integer();

// Those that end as multiples do; none: the last three digits do not tell (of 3, say).
std::optional<Expression> multiples_of(int64_t step);
Expression number_with(int32_t decimals);  // at most so many digits after the point, and no exponent

Expression integer_between(std::optional<int64_t> least, std::optional<int64_t> most);  // within 18 digits

struct Bound {
  std::string digits;      // of the whole part, no leading zeros but "0"; at most 18
  std::string fraction;    // digits after the point, no trailing zeros
  bool negative = false;   // not for 0
  bool exclusive = false;  // the bound itself is outside
};
// Written without an exponent.
Expression number_between(const std::optional<Bound>& least, const std::optional<Bound>& most);

}  // namespace quire::grammar
