// Calls, the tests and the global functions. Filters and methods have files of their own.
#include "jinja/builtins.h"

#include <algorithm>

#include "jinja/operators.h"
#include "jinja/print.h"

namespace quire::jinja {
namespace {

constexpr Integer kMostRange = 100'000;  // the sandbox of the original has the same
constexpr size_t kMostDateBytes = 4096;

// ---- tests

template <auto is>
Value test(Runtime&, const Value& value, const Bound&) {
  return Value::boolean(is(value));
}

// x is eq(y): whether the operator holds between them.
template <char first, char second = 0>
Value relation(Runtime& runtime, const Value& value, const Bound& bound) {
  static constexpr char kSymbol[] = {first, second, 0};
  static BinaryOperator* const kOperator = find_operator(kSymbol);
  return kOperator(runtime, value, bound[0]);
}

template <int rest>
Value leaves_of_two(Runtime& runtime, const Value& value, const Bound&) {
  const Value remainder = find_operator("%")(runtime, value, Value::integer(2));
  return Value::boolean(equal(runtime.meter, remainder, Value::integer(rest)));
}

bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.is_undefined() || value.text() || value.dict() || (sequence && sequence->indexed());
}

using V = const Value&;
constexpr Builtin kTests[] = {
    {"boolean", test<[](V value) { return value.boolean() != nullptr; }>},
    {"defined", test<[](V value) { return !value.is_undefined(); }>},
    {"even", leaves_of_two<0>},
    {"false", test<[](V value) { return value.boolean() && !*value.boolean(); }>},
    {"float", test<[](V value) { return value.real() != nullptr; }>},
    {"integer", test<[](V value) { return value.integer() && !value.boolean(); }>},
    {"iterable", test<iterable>},
    {"mapping", test<[](V value) { return value.dict() != nullptr; }>},
    {"none", test<[](V value) { return value.is_none(); }>},
    {"number", test<[](V value) { return value.number().has_value(); }>},
    {"odd", leaves_of_two<1>},
    {"sequence", test<is_sequence>},
    {"string", test<[](V value) { return value.text() != nullptr; }>},
    {"true", test<[](V value) { return value.boolean() && *value.boolean(); }>},
    {"undefined", test<[](V value) { return value.is_undefined(); }>},
    {"in", relation<'i', 'n'>, {"other"}, 1},
    {"eq", relation<'=', '='>, {"other"}, 1},
    {"==", relation<'=', '='>, {"other"}, 1},
    {"equalto", relation<'=', '='>, {"other"}, 1},
    {"ne", relation<'!', '='>, {"other"}, 1},
    {"!=", relation<'!', '='>, {"other"}, 1},
    {"lt", relation<'<'>, {"other"}, 1},
    {"<", relation<'<'>, {"other"}, 1},
    {"le", relation<'<', '='>, {"other"}, 1},
    {"<=", relation<'<', '='>, {"other"}, 1},
    {"gt", relation<'>'>, {"other"}, 1},
    {">", relation<'>'>, {"other"}, 1},
    {"ge", relation<'>', '='>, {"other"}, 1},
    {">=", relation<'>', '='>, {"other"}, 1},
};

// ---- global functions

Value range(Runtime& runtime, const Value&, const Bound& bound) {
  const bool one = !bound.given(1);
  const Integer first = one ? 0 : bound.integer(0, 0), end = bound.integer(one ? 0 : 1, 0), step = bound.integer(2, 1);
  check(step != 0, "range: 'step' must not be zero");
  constexpr Integer kFar = Integer{1} << 100;  // sums below stay in 127 bits
  for (const Integer value : {first, end, step}) check(value > -kFar && value < kFar, "range: a number is too large");
  const Integer distance = step > 0 ? end - first : first - end, length = step > 0 ? step : -step;
  const Integer count = distance <= 0 ? 0 : (distance - 1) / length + 1;
  check(count <= kMostRange, "range: more than ", static_cast<int64_t>(kMostRange), " numbers");
  std::vector<Value> elements;
  for (Integer i = 0; i < count; ++i) elements.push_back(Value::integer(first + i * step));
  return runtime.sequence(Sequence::Kind::range, std::move(elements));
}

// Calls set(key, value) for what dict(...) and namespace(...) are given: a dict, then names.
template <class Set>
void for_each_entry(Runtime& runtime, std::string_view function, const Arguments& arguments, const Set& set) {
  if (!arguments.positional.empty()) {
    const bool one_dict = arguments.positional.size() == 1 && arguments.positional[0].dict();
    check(one_dict, function, " takes one dict, then values by name");
    for (const auto& [key, value] : arguments.positional[0].dict()->entries()) set(key, value);
  }
  for (const auto& [name, value] : arguments.named) set(runtime.text(name), value);
}

Value dict_global(Runtime& runtime, const Value&, const Bound& bound) {
  auto dict = std::make_shared<Dict>(runtime.meter);
  for_each_entry(runtime, "dict", bound.all(), [&](V key, V value) { dict->set(key, value); });
  return make_dict(std::move(dict));
}

Value namespace_global(Runtime& runtime, const Value&, const Bound& bound) {
  auto& result = runtime.make<Namespace>();
  for_each_entry(runtime, "namespace", bound.all(),
                 [&](V key, V value) { result.set(runtime, text_of(key, "namespace"), value); });
  return Value::object(&result);
}

Value raise_exception(Runtime& runtime, const Value&, const Bound& bound) {
  throw CheckError(str(runtime.meter, bound[0]));
}

Value strftime_now(Runtime& runtime, const Value&, const Bound& bound) {
  // An empty result and one that does not fit are told apart by a character of our own.
  const std::string format = text_of(bound[0], "strftime_now") + ".";
  check(format.find('\0') == std::string::npos, "strftime_now: the format holds a null character");
  if (!runtime.now) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &runtime.now.emplace());
  }
  std::string buffer(kMostDateBytes, 0);
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), format.c_str(), &*runtime.now);
  check(bytes > 0, "strftime_now: the result has more than ", kMostDateBytes, " bytes");
  buffer.resize(bytes - 1);
  return runtime.text(std::move(buffer));
}

constexpr Builtin kGlobals[] = {
    {"dict", dict_global, {}, Builtin::kReadsAll},        {"namespace", namespace_global, {}, Builtin::kReadsAll},
    {"raise_exception", raise_exception, {"message"}, 1}, {"range", range, {"start", "stop", "step"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

const Builtin* find_test(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kTests), std::end(kTests), [&](auto& entry) { return entry.name == name; });
  return found == std::end(kTests) ? nullptr : found;
}

const Builtin* find_global(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kGlobals), std::end(kGlobals), [&](auto& entry) { return entry.name == name; });
  return found == std::end(kGlobals) ? nullptr : found;
}

// ---- calls

Bound::Bound(const Builtin& builtin, const Arguments& arguments) : builtin_(builtin), arguments_(arguments) {
  if (builtin.required == Builtin::kReadsAll) return;
  const auto& names = builtin.parameters;
  const auto most = static_cast<size_t>(std::find(names.begin(), names.end(), "") - names.begin());
  check(arguments.positional.size() <= most, builtin.name, " takes at most ", most, " arguments, got ",
        arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    check(at < most, builtin.name, " has no parameter '", name, "'");
    check(!values_[at], builtin.name, " got '", name, "' twice");
    values_[at] = &value;
  }
  for (int i = 0; i < builtin.required; ++i) check(values_[i], builtin.name, " needs '", names[i], "'");
}

bool Bound::flag(size_t parameter) const { return values_[parameter] && truth(*values_[parameter]); }

Integer Bound::integer(size_t parameter, Integer otherwise) const {
  if (!given(parameter)) return otherwise;
  const Value& value = *values_[parameter];
  value.check_defined();
  const auto integer = value.integer();
  check(integer.has_value(), builtin_.name, ": '", builtin_.parameters[parameter], "' must be an integer, not ",
        value.type());
  return *integer;
}

std::string_view Bound::text(size_t parameter, std::string_view otherwise) const {
  if (!given(parameter)) return otherwise;
  const Value& value = *values_[parameter];
  value.check_defined();
  check(value.text(), builtin_.name, ": '", builtin_.parameters[parameter], "' must be a string, not ", value.type());
  return value.text()->bytes;
}

Value Object::attribute(Runtime& runtime, std::string_view name) {
  return Value::undefined(runtime.meter, cat("'", type(), "' has no attribute '", name, "'"));
}

Value Object::call(Runtime&, const Arguments&) { throw CheckError(cat("a ", type(), " cannot be called")); }

Value call(Runtime& runtime, const Value& callee, const Arguments& arguments) {
  callee.check_defined();
  if (const Method* method = callee.method()) return method->builtin->call(runtime, method->self, arguments);
  check(callee.object(), "a ", callee.type(), " cannot be called");
  return callee.object()->call(runtime, arguments);
}

Value Namespace::attribute(Runtime& runtime, std::string_view name) {
  runtime.meter.walk(attributes_.size());
  for (const auto& [key, value] : attributes_)
    if (key == name) return value;
  return Object::attribute(runtime, name);
}

void Namespace::set(Runtime& runtime, std::string_view name, const Value& value) {
  check(!name.starts_with('_'), "a namespace's attribute must not begin with an underscore: '", name, "'");
  runtime.meter.walk(attributes_.size());
  for (auto& [key, old] : attributes_)
    if (key == name) {
      old = value;
      return;
    }
  runtime.objects_hold.grow(sizeof(attributes_[0]) + name.size());
  attributes_.emplace_back(name, value);
}

}  // namespace quire::jinja
