#include "text/jinja_tests.h"

#include "text/jinja_compare.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

// Tests without arguments and without need of the machine.
template <bool (*is)(const Value&)>
bool plain(Machine&, const Value& value, const Arguments& arguments) {
  const Bound bound("this test", arguments, {});
  return is(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.boolean(); }
bool is_true(const Value& value) { return value.boolean() && *value.boolean(); }
bool is_false(const Value& value) { return value.boolean() && !*value.boolean(); }
bool is_integer(const Value& value) { return value.integer() && !value.boolean(); }
bool is_float(const Value& value) { return value.real(); }
bool is_number(const Value& value) { return value.number().has_value(); }
bool is_string(const Value& value) { return value.text(); }
bool is_mapping(const Value& value) { return value.dict(); }
bool is_escaped(const Value& value) { return value.text() && value.text()->markup; }
bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.is_undefined() || value.text() || value.dict() || (sequence && sequence->indexed());
}

bool in_upper(Machine& machine, const Value& value, const Arguments&) { return is_upper(show(machine.meter, value)); }
bool in_lower(Machine& machine, const Value& value, const Arguments&) { return is_lower(show(machine.meter, value)); }

bool leaves(Machine& machine, const Value& value, const Value& divisor, Integer rest) {
  const Value remainder = calculate(machine, ArithmeticOperator::modulo, value, divisor);
  return equal(machine.meter, remainder, Value::integer(rest));
}
bool odd(Machine& machine, const Value& value, const Arguments&) {
  return leaves(machine, value, Value::integer(2), 1);
}
bool even(Machine& machine, const Value& value, const Arguments&) {
  return leaves(machine, value, Value::integer(2), 0);
}
bool divisible(Machine& machine, const Value& value, const Arguments& arguments) {
  const Bound bound("divisibleby", arguments, {"num"}, 1);
  return leaves(machine, value, bound[0], 0);
}

Value other(const Arguments& arguments) { return Bound("this test", arguments, {"other"}, 1)[0]; }

bool is_equal(Machine& machine, const Value& value, const Arguments& arguments) {
  return equal(machine.meter, value, other(arguments));
}
bool is_unequal(Machine& machine, const Value& value, const Arguments& arguments) {
  return !equal(machine.meter, value, other(arguments));
}
bool is_less(Machine& machine, const Value& value, const Arguments& arguments) {
  return less(machine.meter, value, other(arguments));
}
bool is_greater(Machine& machine, const Value& value, const Arguments& arguments) {
  return less(machine.meter, other(arguments), value);
}
bool is_at_most(Machine& machine, const Value& value, const Arguments& arguments) {
  return at_most(machine.meter, value, other(arguments));
}
bool is_at_least(Machine& machine, const Value& value, const Arguments& arguments) {
  return at_most(machine.meter, other(arguments), value);
}
bool is_in(Machine& machine, const Value& value, const Arguments& arguments) {
  return contains(machine.meter, other(arguments), value);
}
bool same(Machine&, const Value& value, const Arguments& arguments) { return identical(value, other(arguments)); }

bool names_filter(Machine& machine, const Value& value, const Arguments&) {
  return find_filter(show(machine.meter, value)) != nullptr;
}
bool names_test(Machine& machine, const Value& value, const Arguments&) {
  return find_test(show(machine.meter, value)) != nullptr;
}

struct Entry {
  std::string_view name;
  TestFunction* function;
};
constexpr Entry kTests[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"boolean", plain<is_boolean>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"number", plain<is_number>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"sequence", plain<is_sequence>},
    {"iterable", plain<iterable>},
    {"callable", plain<callable>},
    {"escaped", plain<is_escaped>},
    {"odd", odd},
    {"even", even},
    {"divisibleby", divisible},
    {"lower", in_lower},
    {"upper", in_upper},
    {"sameas", same},
    {"in", is_in},
    {"eq", is_equal},
    {"==", is_equal},
    {"equalto", is_equal},
    {"ne", is_unequal},
    {"!=", is_unequal},
    {"lt", is_less},
    {"<", is_less},
    {"lessthan", is_less},
    {"le", is_at_most},
    {"<=", is_at_most},
    {"gt", is_greater},
    {">", is_greater},
    {"greaterthan", is_greater},
    {"ge", is_at_least},
    {">=", is_at_least},
    {"filter", names_filter},
    {"test", names_test},
};

}  // namespace

TestFunction* find_test(std::string_view name) {
  for (const Entry& entry : kTests)
    if (entry.name == name) return entry.function;
  return nullptr;
}

}  // namespace quire::text::jinja
