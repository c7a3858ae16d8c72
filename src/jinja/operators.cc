#include "jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "jinja/print.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

using Kind = Sequence::Kind;

// ---- comparison

bool equal_elements(Meter& meter, const Sequence& left, const Sequence& right) {
  if (&left == &right) return true;
  if (left.kind != right.kind || !left.indexed()) return false;  // views and iterators equal only themselves
  return std::equal(left.elements.begin(), left.elements.end(), right.elements.begin(), right.elements.end(),
                    [&](const Value& a, const Value& b) { return equal(meter, a, b); });
}

bool equal_entries(Meter& meter, const Dict& left, const Dict& right) {
  if (left.entries().size() != right.entries().size()) return false;
  return std::all_of(left.entries().begin(), left.entries().end(), [&](const auto& entry) {
    const Value* other = right.find(entry.first);
    return other && equal(meter, entry.second, *other);
  });
}

bool at_most(Meter& meter, const Value& left, const Value& right) {
  return less(meter, left, right) || equal(meter, left, right);
}

// ---- arithmetic

[[noreturn]] void fail_types(std::string_view op, const Value& left, const Value& right) {
  left.check_defined();
  right.check_defined();
  throw CheckError(cat("'", op, "' does not work on ", left.type(), " and ", right.type()));
}

Value unless_overflow(bool overflow, const Integer& result) {
  check(!overflow, "an integer of more than 127 bits");
  return Value::integer(result);
}

// Joined to markup, plain text is escaped.
Value add_texts(Runtime& runtime, const Text& left, const Text& right) {
  runtime.meter.check_bytes(left.bytes.size() + right.bytes.size());
  const bool markup = left.markup || right.markup;
  const auto joined = [&](const Text& text) { return markup && !text.markup ? escape_html(text.bytes) : text.bytes; };
  return make_text(runtime.meter, markup ? joined(left) + joined(right) : left.bytes + right.bytes, markup);
}

Value add(Runtime& runtime, const Value& left, const Value& right) {
  if (left.text() && right.text()) return add_texts(runtime, *left.text(), *right.text());
  if (left.integer() && right.integer()) {
    Integer result = 0;
    return unless_overflow(__builtin_add_overflow(*left.integer(), *right.integer(), &result), result);
  }
  if (left.number() && right.number()) return Value::real(*left.number() + *right.number());
  const Sequence *first = left.sequence(), *second = right.sequence();
  if (!first || !second || first->kind != second->kind || first->kind > Kind::tuple) fail_types("+", left, right);
  runtime.meter.check_items(first->elements.size() + second->elements.size());
  std::vector<Value> elements = first->elements;
  elements.insert(elements.end(), second->elements.begin(), second->elements.end());
  return runtime.sequence(first->kind, std::move(elements));
}

Value subtract(Runtime&, const Value& left, const Value& right) {
  if (left.integer() && right.integer()) {
    Integer result = 0;
    return unless_overflow(__builtin_sub_overflow(*left.integer(), *right.integer(), &result), result);
  }
  if (!left.number() || !right.number()) fail_types("-", left, right);
  return Value::real(*left.number() - *right.number());
}

// How often to repeat something of `size`: not so often that the product wraps, but then more than any limit allows.
size_t times(Integer count, size_t size) {
  constexpr Integer kFar = Integer{1} << 40;
  if (count <= 0 || size == 0) return 0;
  return static_cast<size_t>(std::min(count, kFar / static_cast<Integer>(size) + 1));
}

Value repeat(Runtime& runtime, const Text& text, Integer count) {
  const size_t repeats = times(count, text.bytes.size());
  runtime.meter.check_bytes(repeats * text.bytes.size());
  std::string result = repeats > 0 ? text.bytes : "";
  result.reserve(repeats * text.bytes.size());
  while (result.size() < repeats * text.bytes.size())  // twice as long each time
    result.append(result, 0, repeats * text.bytes.size() - result.size());
  return make_text(runtime.meter, std::move(result), text.markup);
}

Value repeat(Runtime& runtime, const Sequence& list, Integer count) {
  const size_t repeats = times(count, list.elements.size());
  runtime.meter.check_items(repeats * list.elements.size());
  std::vector<Value> elements;
  for (size_t i = 0; i < repeats; ++i) elements.insert(elements.end(), list.elements.begin(), list.elements.end());
  return runtime.sequence(list.kind, std::move(elements));
}

Value multiply(Runtime& runtime, const Value& left, const Value& right) {
  if (left.integer() && right.integer()) {
    Integer result = 0;
    return unless_overflow(__builtin_mul_overflow(*left.integer(), *right.integer(), &result), result);
  }
  if (left.number() && right.number()) return Value::real(*left.number() * *right.number());
  const bool count_first = left.integer().has_value();
  const Value &count = count_first ? left : right, &repeated = count_first ? right : left;
  const Sequence* list = repeated.sequence();
  if (count.integer() && repeated.text()) return repeat(runtime, *repeated.text(), *count.integer());
  if (count.integer() && list && list->kind <= Kind::tuple) return repeat(runtime, *list, *count.integer());
  fail_types("*", left, right);
}

void check_division(std::string_view op, const Value& left, const Value& right) {
  if (!left.number() || !right.number()) fail_types(op, left, right);
  check(*right.number() != 0, "division by zero");
}

Value divide(Runtime&, const Value& left, const Value& right) {
  check_division("/", left, right);
  return Value::real(*left.number() / *right.number());
}

// Quotients round down, so a remainder has the divisor's sign.
Value floor_divide(Runtime&, const Value& left, const Value& right) {
  check_division("//", left, right);
  if (!left.integer() || !right.integer()) return Value::real(std::floor(*left.number() / *right.number()));
  const Integer a = *left.integer(), b = *right.integer();
  if (b == -1) return negate(left);
  return Value::integer(a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0));
}

Value modulo(Runtime& runtime, const Value& left, const Value& right) {
  if (left.text()) return format_percent(runtime, left.text()->bytes, right);
  check_division("%", left, right);
  if (left.integer() && right.integer()) {
    const Integer b = *right.integer(), rest = b == -1 ? 0 : *left.integer() % b;
    return Value::integer(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
  }
  const double b = *right.number(), rest = std::fmod(*left.number(), b);
  return Value::real(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

using V = const Value&;
constexpr std::pair<std::string_view, BinaryOperator*> kOperators[] = {
    {"+", add},
    {"-", subtract},
    {"*", multiply},
    {"/", divide},
    {"//", floor_divide},
    {"%", modulo},
    {"==", [](Runtime& runtime, V a, V b) { return Value::boolean(equal(runtime.meter, a, b)); }},
    {"!=", [](Runtime& runtime, V a, V b) { return Value::boolean(!equal(runtime.meter, a, b)); }},
    {"<", [](Runtime& runtime, V a, V b) { return Value::boolean(less(runtime.meter, a, b)); }},
    {"<=", [](Runtime& runtime, V a, V b) { return Value::boolean(at_most(runtime.meter, a, b)); }},
    {">", [](Runtime& runtime, V a, V b) { return Value::boolean(less(runtime.meter, b, a)); }},
    {">=", [](Runtime& runtime, V a, V b) { return Value::boolean(at_most(runtime.meter, b, a)); }},
    {"in", [](Runtime& runtime, V a, V b) { return Value::boolean(contains(runtime.meter, b, a)); }},
};

// ---- subscripts

// A method, or what an object has.
std::optional<Value> own_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (const Builtin* method = find_method(value, name)) return make_method(runtime.meter, value, method);
  if (refused_method(value, name))
    return Value::undefined(runtime.meter,
                            cat("the method '", name, "' of a ", value.type(), " is not supported in templates"));
  if (Object* object = value.object()) return object->attribute(runtime, name);
  return std::nullopt;
}

// The place of index i among n, counted from the end when negative; none when outside.
std::optional<size_t> place(Integer index, size_t count) {
  const Integer size = static_cast<Integer>(count);
  const Integer at = index < 0 ? index + size : index;
  return at >= 0 && at < size ? std::optional(static_cast<size_t>(at)) : std::nullopt;
}

std::optional<Value> character(Runtime& runtime, const Text& text, Integer index) {
  auto at = place(index, text.code_points);
  if (!at) return std::nullopt;
  if (text.ascii()) return runtime.text(text.bytes.substr(*at, 1));
  runtime.meter.work_on_bytes(text.bytes.size());
  size_t byte = 0;
  for (; *at > 0; --*at) byte += code_point_at(text.bytes, byte).bytes;
  return runtime.text(text.bytes.substr(byte, code_point_at(text.bytes, byte).bytes));
}

std::optional<Value> entry(Runtime& runtime, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto index = key.integer();
  if (!index) return std::nullopt;
  if (const Text* text = value.text()) return character(runtime, *text, *index);
  const Sequence* sequence = value.sequence();
  if (!sequence || !sequence->indexed()) return std::nullopt;
  const auto at = place(*index, sequence->elements.size());
  return at ? std::optional(sequence->elements[*at]) : std::nullopt;
}

struct Range {
  Integer first;
  Integer count;
  Integer step;
};

std::optional<Integer> slice_bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  value.check_defined();
  check(value.integer().has_value(), "a slice needs integers, not ", value.type());
  return value.integer();
}

// Python's rules: bounds past an end are moved to it, those left out mean the whole.
Range slice_range(size_t count, const Value& first, const Value& last, const Value& step) {
  constexpr Integer kFar = Integer{1} << 40;  // longer than anything, and its negative exists
  const auto size = static_cast<Integer>(count);
  const Integer stride = std::clamp(slice_bound(step).value_or(1), -kFar, kFar);
  check(stride != 0, "a slice's step cannot be zero");
  const Integer lowest = stride < 0 ? -1 : 0, highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](std::optional<Integer> at, Integer otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 && *at >= -size ? *at + size : *at, lowest, highest);
  };
  const Integer from = clamp(slice_bound(first), stride < 0 ? highest : lowest);
  const Integer to = clamp(slice_bound(last), stride < 0 ? lowest : highest);
  const Integer distance = stride < 0 ? from - to : to - from, length = stride < 0 ? -stride : stride;
  return {from, distance <= 0 ? 0 : (distance - 1) / length + 1, stride};
}

std::string slice_text(Meter& meter, const Text& text, const Range& range) {
  std::vector<size_t> starts;  // of code points, in bytes; of ASCII none are needed
  if (!text.ascii()) {
    meter.work_on_bytes(text.bytes.size());
    starts.reserve(text.code_points + 1);
    for (size_t at = 0; at < text.bytes.size(); at += code_point_at(text.bytes, at).bytes) starts.push_back(at);
    starts.push_back(text.bytes.size());
  }
  const auto start = [&](Integer at) {
    return starts.empty() ? static_cast<size_t>(at) : starts[static_cast<size_t>(at)];
  };
  if (range.step == 1)
    return text.bytes.substr(start(range.first), start(range.first + range.count) - start(range.first));
  std::string result;
  Integer at = range.first;
  for (Integer i = 0; i < range.count; ++i, at += range.step)
    result.append(text.bytes, start(at), start(at + 1) - start(at));
  return result;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const Sequence* sequence = value.sequence())
    return sequence->kind == Kind::iterator || !sequence->elements.empty();
  if (const Dict* dict = value.dict()) return !dict->entries().empty();
  return true;
}

bool equal(Meter& meter, const Value& left, const Value& right) {
  meter.step();
  if (const Text* a = left.text(), *b = right.text(); a && b) {
    if (a->bytes.size() != b->bytes.size()) return false;
    meter.work_on_bytes(a->bytes.size());
    return a->bytes == b->bytes;
  }
  if (left.is_undefined() || right.is_undefined()) return left.is_undefined() && right.is_undefined();
  if (left.is_none() || right.is_none()) return left.is_none() && right.is_none();
  if (left.integer() && right.integer()) return *left.integer() == *right.integer();
  if (left.number() && right.number()) return *left.number() == *right.number();
  if (left.sequence() && right.sequence()) return equal_elements(meter, *left.sequence(), *right.sequence());
  if (left.dict() && right.dict()) return equal_entries(meter, *left.dict(), *right.dict());
  return left.object() && left.object() == right.object();
}

bool less(Meter& meter, const Value& left, const Value& right) {
  meter.step();
  left.check_defined();
  right.check_defined();
  if (left.integer() && right.integer()) return *left.integer() < *right.integer();
  if (left.number() && right.number()) return *left.number() < *right.number();
  if (const Text* a = left.text(), *b = right.text(); a && b) {
    meter.work_on_bytes(std::min(a->bytes.size(), b->bytes.size()));
    return a->bytes < b->bytes;  // UTF-8 sorts like code points
  }
  const Sequence *first = left.sequence(), *second = right.sequence();
  const bool ordered = first && second && first->kind == second->kind && first->kind <= Kind::tuple;
  check(ordered, "a ", left.type(), " and a ", right.type(), " have no order");
  const size_t common = std::min(first->elements.size(), second->elements.size());
  for (size_t i = 0; i < common; ++i)
    if (!equal(meter, first->elements[i], second->elements[i]))
      return less(meter, first->elements[i], second->elements[i]);
  return first->elements.size() < second->elements.size();
}

bool contains(Meter& meter, const Value& container, const Value& element) {
  if (const Text* text = container.text()) {
    element.check_defined();
    check(element.text(), "'in' with a string on its right needs a string on its left, not ", element.type());
    meter.work_on_bytes(text->bytes.size());
    return find(text->bytes, element.text()->bytes) != kNowhere;
  }
  if (const Dict* dict = container.dict()) return dict->find(element) != nullptr;
  const std::vector<Value> elements = elements_of(meter, container);
  return std::any_of(elements.begin(), elements.end(),
                     [&](const Value& candidate) { return equal(meter, candidate, element); });
}

BinaryOperator* find_operator(std::string_view symbol) {
  for (const auto& [name, function] : kOperators)
    if (name == symbol) return function;
  return nullptr;
}

Value negate(const Value& value) {
  if (const auto integer = value.integer()) {
    Integer result = 0;
    return unless_overflow(__builtin_sub_overflow(Integer{0}, *integer, &result), result);
  }
  value.check_defined();
  check(value.real(), "a ", value.type(), " has no negative");
  return Value::real(-*value.real());
}

Value negation(const Value& value) { return Value::boolean(!truth(value)); }

Value attribute_of(Runtime& runtime, const Value& value, std::string_view name) {
  value.check_defined();
  if (const auto found = own_attribute(runtime, value, name)) return *found;
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(name)) return *found;
  return Value::undefined(runtime.meter, cat("a ", value.type(), " has no attribute '", name, "'"));
}

Value element_of(Runtime& runtime, const Value& value, const Value& key) {
  value.check_defined();
  if (const auto found = entry(runtime, value, key)) return *found;
  if (const Text* name = key.text())
    if (const auto found = own_attribute(runtime, value, name->bytes)) return *found;
  constexpr size_t kMostShown = 60;
  const bool long_text = key.text() && key.text()->bytes.size() > kMostShown;
  std::string shown = repr(runtime.meter, long_text ? runtime.text(key.text()->bytes.substr(0, kMostShown)) : key);
  if (shown.size() > kMostShown) shown = shown.substr(0, kMostShown) + "...";
  return Value::undefined(runtime.meter, cat("a ", value.type(), " has no element ", shown));
}

Value slice_of(Runtime& runtime, const Value& value, const Value& first, const Value& last, const Value& step) {
  value.check_defined();
  if (const Text* text = value.text())
    return runtime.text(slice_text(runtime.meter, *text, slice_range(text->code_points, first, last, step)));
  const Sequence* sequence = value.sequence();
  check(sequence && sequence->indexed(), "a ", value.type(), " cannot be sliced");
  const Range range = slice_range(sequence->elements.size(), first, last, step);
  std::vector<Value> elements;
  Integer at = range.first;
  for (Integer i = 0; i < range.count; ++i, at += range.step)
    elements.push_back(sequence->elements[static_cast<size_t>(at)]);
  return runtime.sequence(sequence->kind, std::move(elements));
}

Value at_path(Runtime& runtime, Value value, const Value& path) {
  if (!path.text()) return path.is_none() ? value : element_of(runtime, value, path);
  runtime.meter.work_on_bytes(path.text()->bytes.size());
  const std::vector<std::string_view> parts = split_at(path.text()->bytes, ".", runtime.meter.most_items());
  runtime.meter.check_items(parts.size());
  for (const std::string_view part : parts) {
    runtime.meter.step();
    const bool index = all_digits(part) && part.size() < 10;
    value = element_of(runtime, value, index ? Value::integer(std::stoi(std::string(part))) : runtime.text(part));
  }
  return value;
}

size_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) return text->code_points;
  if (const Dict* dict = value.dict()) return dict->entries().size();
  const Sequence* sequence = value.sequence();
  check(sequence && sequence->kind != Kind::iterator, "a ", value.type(), " has no length");
  return sequence->elements.size();
}

bool iterable(const Value& value) { return value.is_undefined() || value.text() || value.sequence() || value.dict(); }

std::vector<Value> elements_of(Meter& meter, const Value& value) {
  std::vector<Value> result;
  if (Sequence* sequence = value.sequence()) {
    meter.step(sequence->elements.size());
    if (sequence->kind != Kind::iterator) return sequence->elements;
    const size_t from = std::exchange(sequence->next, sequence->elements.size());
    result.assign(sequence->elements.begin() + static_cast<std::ptrdiff_t>(from), sequence->elements.end());
  } else if (const Dict* dict = value.dict()) {
    meter.step(dict->entries().size());
    for (const auto& [key, entry] : dict->entries()) result.push_back(key);
  } else if (!value.is_undefined()) {
    check(value.text(), "a ", value.type(), " is not iterable");
    meter.check_items(length(value));
    meter.step(length(value));
    for (const std::string_view character : characters(value.text()->bytes))
      result.push_back(make_text(meter, std::string(character)));
  }
  return result;
}

}  // namespace quire::jinja
