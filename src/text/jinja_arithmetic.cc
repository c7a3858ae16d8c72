#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

[[noreturn]] void fail_overflow() { throw CheckError("an integer of more than 127 bits"); }

[[noreturn]] void fail_types(std::string_view op, const Value& left, const Value& right) {
  left.check_defined();
  right.check_defined();
  throw CheckError(cat("'", op, "' does not work on ", left.type(), " and ", right.type()));
}

Value add_integers(Integer left, Integer right) {
  Integer result;
  if (__builtin_add_overflow(left, right, &result)) fail_overflow();
  return Value::integer(result);
}

Value multiply_integers(Integer left, Integer right) {
  Integer result;
  if (__builtin_mul_overflow(left, right, &result)) fail_overflow();
  return Value::integer(result);
}

// Joined to markup, plain text is escaped.
Value add_texts(Machine& machine, const Text& left, const Text& right) {
  machine.meter.check_bytes(left.bytes.size() + right.bytes.size());
  if (left.markup == right.markup) return machine.text(left.bytes + right.bytes, left.markup);
  return machine.text(left.markup ? left.bytes + escape_html(right.bytes) : escape_html(left.bytes) + right.bytes,
                      true);
}

Value add_sequences(Machine& machine, const Sequence& left, const Sequence& right) {
  machine.meter.check_items(left.elements.size() + right.elements.size());
  std::vector<Value> elements = left.elements;
  elements.insert(elements.end(), right.elements.begin(), right.elements.end());
  return make_sequence(machine.meter, left.tuple_like() ? SequenceKind::tuple : SequenceKind::list,
                       std::move(elements));
}

bool can_join(const Sequence* left, const Sequence* right) {
  if (!left || !right) return false;
  if (left->kind == SequenceKind::list) return right->kind == SequenceKind::list;
  return left->tuple_like() && right->tuple_like();
}

// How often to repeat something of `size`, once that is known to fit: a product of two sizes must not wrap.
size_t times(Integer count, size_t size) {
  if (count <= 0 || size == 0) return 0;
  constexpr Integer kMany = Integer{1} << 40;
  return static_cast<size_t>(count < kMany ? count : kMany);
}

Value repeat(Machine& machine, const Value& value, Integer count) {
  if (const Text* text = value.text()) {
    const size_t repeats = times(count, text->bytes.size());
    machine.meter.check_bytes(repeats * text->bytes.size());
    std::string result;
    result.reserve(repeats * text->bytes.size());
    for (size_t i = 0; i < repeats; ++i) result += text->bytes;
    return machine.text(std::move(result), text->markup);
  }
  const Sequence& sequence = *value.sequence();
  const size_t repeats = times(count, sequence.elements.size());
  machine.meter.check_items(repeats * sequence.elements.size());
  std::vector<Value> elements;
  for (size_t i = 0; i < repeats; ++i)
    elements.insert(elements.end(), sequence.elements.begin(), sequence.elements.end());
  return make_sequence(machine.meter, sequence.kind, std::move(elements));
}

bool repeatable(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.text() || (sequence && sequence->kind != SequenceKind::range && sequence->indexed());
}

Value multiply(Machine& machine, const Value& left, const Value& right) {
  if (left.integer() && right.integer()) return multiply_integers(*left.integer(), *right.integer());
  if (left.number() && right.number()) return Value::real(*left.number() * *right.number());
  if (repeatable(left) && right.integer()) return repeat(machine, left, *right.integer());
  if (left.integer() && repeatable(right)) return repeat(machine, right, *left.integer());
  fail_types("*", left, right);
}

Value subtract(const Value& left, const Value& right) {
  if (left.integer() && right.integer()) {
    Integer result;
    if (__builtin_sub_overflow(*left.integer(), *right.integer(), &result)) fail_overflow();
    return Value::integer(result);
  }
  if (!left.number() || !right.number()) fail_types("-", left, right);
  return Value::real(*left.number() - *right.number());
}

void check_divisor(double divisor) { check(divisor != 0, "division by zero"); }

Value divide(const Value& left, const Value& right) {
  if (!left.number() || !right.number()) fail_types("/", left, right);
  check_divisor(*right.number());
  return Value::real(*left.number() / *right.number());
}

// Quotients round down, so a remainder has the divisor's sign.
Value floor_divide(const Value& left, const Value& right) {
  if (!left.number() || !right.number()) fail_types("//", left, right);
  check_divisor(*right.number());
  if (!left.integer() || !right.integer()) return Value::real(std::floor(*left.number() / *right.number()));
  const Integer a = *left.integer(), b = *right.integer();
  if (b == -1) return negate(left);
  return Value::integer(a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0));
}

Value remainder(const Value& left, const Value& right) {
  if (!left.number() || !right.number()) fail_types("%", left, right);
  check_divisor(*right.number());
  if (left.integer() && right.integer()) {
    const Integer b = *right.integer(), rest = b == -1 ? 0 : *left.integer() % b;
    return Value::integer(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
  }
  const double b = *right.number(), rest = std::fmod(*left.number(), b);
  return Value::real(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Value modulo(Machine& machine, const Value& left, const Value& right) {
  if (left.text()) return format_percent(machine, *left.text(), right);
  return remainder(left, right);
}

Value power(const Value& left, const Value& right) {
  if (!left.number() || !right.number()) fail_types("**", left, right);
  if (!left.integer() || !right.integer() || *right.integer() < 0) {
    check(*left.number() != 0 || *right.number() >= 0, "zero to a negative power");
    return Value::real(std::pow(*left.number(), *right.number()));
  }
  const Integer base = *left.integer();
  const bool trivial = base >= -1 && base <= 1;
  const Integer exponent = trivial && *right.integer() > 1 ? 2 + *right.integer() % 2 : *right.integer();
  Integer result = 1;
  for (Integer i = 0; i < exponent; ++i)
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
  return Value::integer(result);
}

}  // namespace

Value add(Machine& machine, const Value& left, const Value& right) {
  if (left.text() && right.text()) return add_texts(machine, *left.text(), *right.text());
  if (left.integer() && right.integer()) return add_integers(*left.integer(), *right.integer());
  if (left.number() && right.number()) return Value::real(*left.number() + *right.number());
  if (!can_join(left.sequence(), right.sequence())) fail_types("+", left, right);
  return add_sequences(machine, *left.sequence(), *right.sequence());
}

Value negate(const Value& value) {
  if (const auto integer = value.integer()) {
    Integer result;
    if (__builtin_sub_overflow(Integer{0}, *integer, &result)) fail_overflow();
    return Value::integer(result);
  }
  value.check_defined();
  check(value.real(), "a ", value.type(), " has no negative");
  return Value::real(-*value.real());
}

Value calculate(Machine& machine, ArithmeticOperator op, const Value& left, const Value& right) {
  switch (op) {
    case ArithmeticOperator::add:
      return add(machine, left, right);
    case ArithmeticOperator::subtract:
      return subtract(left, right);
    case ArithmeticOperator::multiply:
      return multiply(machine, left, right);
    case ArithmeticOperator::divide:
      return divide(left, right);
    case ArithmeticOperator::floor_divide:
      return floor_divide(left, right);
    case ArithmeticOperator::modulo:
      return modulo(machine, left, right);
    case ArithmeticOperator::power:
      return power(left, right);
  }
  return {};
}

}  // namespace quire::text::jinja
