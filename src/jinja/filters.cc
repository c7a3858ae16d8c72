#include <algorithm>
#include <charconv>
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

// ---- text

template <std::string (*change)(std::string_view)>
Value changed(Runtime& runtime, const Value& input, const Bound&) {
  return runtime.text(change(str(runtime.meter, input)));
}

Value trim(Runtime& runtime, const Value& input, const Bound& bound) {
  return strip_ends(runtime, str(runtime.meter, input), Side::both, bound);
}

Value replace_filter(Runtime& runtime, const Value& input, const Bound& bound) {
  return replace_parts(runtime, str(runtime.meter, input), str(runtime.meter, bound[0]), str(runtime.meter, bound[1]),
                       bound.integer(2, -1));
}

Value stringify(Runtime& runtime, const Value& input, const Bound&) { return as_text(runtime.meter, input); }

Value safe(Runtime& runtime, const Value& input, const Bound&) {
  return make_text(runtime.meter, str(runtime.meter, input), true);
}

Value format_filter(Runtime& runtime, const Value& input, const Bound& bound) {
  check(bound.all().named.empty(), "format takes no arguments by name");
  return format_percent(runtime, str(runtime.meter, input), runtime.tuple(bound.all().positional));
}

// An argument that is a number of blanks or the text itself.
std::string indentation(Runtime& runtime, const Bound& bound, size_t parameter) {
  if (bound.given(parameter) && bound[parameter].text()) return str(runtime.meter, bound[parameter]);
  const Integer width = std::clamp(bound.integer(parameter, 4), Integer{0}, Integer{1} << 40);
  runtime.meter.check_bytes(static_cast<size_t>(width));
  runtime.meter.work_on_bytes(static_cast<size_t>(width));
  return std::string(static_cast<size_t>(width), ' ');
}

Value indent(Runtime& runtime, const Value& input, const Bound& bound) {
  const std::string lines_with_end = text_of(input, "indent") + "\n";
  const std::string margin = indentation(runtime, bound, 0);
  std::string result = bound.flag(1) ? margin : "";
  bool first = true;
  for (std::string_view rest = lines_with_end; !rest.empty();) {
    const std::string_view line = take_line(rest);
    if (!first) result += '\n';
    if (!first && (bound.flag(2) || !line.empty())) result += margin;
    first = false;
    result += line;
    runtime.meter.check_bytes(result.size());
  }
  return runtime.text(std::move(result));
}

Value tojson(Runtime& runtime, const Value& input, const Bound& bound) {
  input.check_defined();
  JsonStyle style;
  style.ascii_only = bound.flag(0);
  style.sorted_keys = bound.flag(3);
  if (bound.given(1)) {
    style.lines = true;
    style.between.assign(1, ',');
    style.indent = indentation(runtime, bound, 1);
  }
  if (bound.given(2)) {
    const std::vector<Value> separators = elements_of(runtime.meter, bound[2]);
    check(separators.size() == 2, "tojson: 'separators' must be two strings");
    style.between = text_of(separators[0], "tojson");
    style.after_key = text_of(separators[1], "tojson");
    runtime.meter.work_on_bytes(style.between.size() + style.after_key.size());
  }
  return runtime.text(to_json(runtime.meter, input, style));
}

// ---- numbers

std::optional<double> read_number(std::string_view text) {
  text = strip(text, Side::both);
  if (text.starts_with('+') && !text.substr(1).starts_with('-')) text.remove_prefix(1);
  double value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = !text.empty() && read.ptr == text.data() + text.size() && read.ec == std::errc();
  return whole ? std::optional(value) : std::nullopt;
}

Value to_float(Runtime& runtime, const Value& input, const Bound& bound) {
  input.check_defined();
  if (input.text()) runtime.meter.work_on_bytes(input.text()->bytes.size());
  const auto number = input.text() ? read_number(input.text()->bytes) : input.number();
  return number ? Value::real(*number) : bound.value_or(0, Value::real(0));
}

// Digits are read exactly; other numbers lose their fraction.
Value to_int(Runtime& runtime, const Value& input, const Bound& bound) {
  input.check_defined();
  if (input.text()) runtime.meter.work_on_bytes(input.text()->bytes.size());
  if (const auto integer = input.integer()) return Value::integer(*integer);
  if (const Text* text = input.text()) {
    const std::string_view digits = strip(text->bytes, Side::both);
    int64_t value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size()) return Value::integer(value);
  }
  const auto number = input.text() ? read_number(input.text()->bytes) : input.number();
  if (!number || !std::isfinite(*number)) return bound.value_or(0, Value::integer(0));
  constexpr double kMost = 1e38;  // below 2^127
  check(std::fabs(*number) < kMost, "int: the number has more than 127 bits");
  return Value::integer(static_cast<Integer>(*number));
}

// ---- lists

Value count(Runtime&, const Value& input, const Bound&) { return Value::integer(static_cast<Integer>(length(input))); }

Value first(Runtime& runtime, const Value& input, const Bound&) {
  Sequence* sequence = input.sequence();
  const bool iterator = sequence && sequence->kind == Sequence::Kind::iterator;
  if (iterator && sequence->next < sequence->elements.size()) return sequence->elements[sequence->next++];
  if (input.text() && !input.text()->bytes.empty()) return element_of(runtime, input, Value::integer(0));
  const std::vector<Value> elements = elements_of(runtime.meter, input);
  return elements.empty() ? Value::undefined(runtime.meter, "there is no first item, the sequence is empty")
                          : elements.front();
}

Value last(Runtime& runtime, const Value& input, const Bound&) {
  check(iterable(input) && (!input.sequence() || input.sequence()->kind != Sequence::Kind::iterator), "a ",
        input.type(), " has no last item");
  if (input.text() && !input.text()->bytes.empty()) return element_of(runtime, input, Value::integer(-1));
  const std::vector<Value> elements = elements_of(runtime.meter, input);
  return elements.empty() ? Value::undefined(runtime.meter, "there is no last item, the sequence is empty")
                          : elements.back();
}

Value list(Runtime& runtime, const Value& input, const Bound&) {
  return runtime.list(elements_of(runtime.meter, input));
}

Value items(Runtime& runtime, const Value& input, const Bound&) {
  if (input.is_undefined()) return runtime.iterator({});
  check(input.dict(), "items needs a dict, not ", input.type());
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict()->entries()) pairs.push_back(runtime.tuple({key, value}));
  return runtime.iterator(std::move(pairs));
}

Value join_filter(Runtime& runtime, const Value& input, const Bound& bound) {
  const std::string separator = str(runtime.meter, bound.value_or(0, constant_text("")));
  std::string result;
  bool at_start = true;
  for (const Value& element : elements_of(runtime.meter, input)) {
    if (!at_start) result += separator;
    at_start = false;
    result += str(runtime.meter, at_path(runtime, element, bound.value_or(1, Value())));
    runtime.meter.check_bytes(result.size());
  }
  return runtime.text(std::move(result));
}

Value reverse(Runtime& runtime, const Value& input, const Bound&) {
  if (input.text()) return slice_of(runtime, input, Value(), Value(), Value::integer(-1));
  std::vector<Value> elements = elements_of(runtime.meter, input);
  std::reverse(elements.begin(), elements.end());
  return runtime.iterator(std::move(elements));
}

Value default_filter(Runtime&, const Value& input, const Bound& bound) {
  const bool left_out = input.is_undefined() || (bound.flag(1) && !truth(input));
  return left_out ? bound.value_or(0, constant_text("")) : input;
}

// ---- order

// An element and what it is compared by.
struct Keyed {
  Value key;
  Value element;
};

std::vector<Keyed> keyed(Runtime& runtime, std::vector<Value> elements, const Value& path, bool with_case) {
  std::vector<Keyed> result;
  result.reserve(elements.size());
  for (Value& element : elements) {
    Value key = at_path(runtime, element, path);
    if (key.text() && !with_case) key = runtime.text(to_lower(key.text()->bytes));
    result.push_back({std::move(key), std::move(element)});
  }
  return result;
}

// Equal keys keep their order, also in reverse.
Value sorted(Runtime& runtime, std::vector<Keyed> values, bool backwards) {
  std::stable_sort(values.begin(), values.end(), [&](const Keyed& a, const Keyed& b) {
    return backwards ? less(runtime.meter, b.key, a.key) : less(runtime.meter, a.key, b.key);
  });
  std::vector<Value> result;
  for (Keyed& value : values) result.push_back(std::move(value.element));
  return runtime.list(std::move(result));
}

Value sort(Runtime& runtime, const Value& input, const Bound& bound) {
  const Value path = bound.value_or(2, Value());
  check(!path.text() || path.text()->bytes.find(',') == std::string::npos,
        "sort: more than one attribute is not supported");
  return sorted(runtime, keyed(runtime, elements_of(runtime.meter, input), path, bound.flag(1)), bound.flag(0));
}

Value dictsort(Runtime& runtime, const Value& input, const Bound& bound) {
  input.check_defined();
  check(input.dict(), "dictsort needs a dict, not ", input.type());
  const std::string_view by = bound.text(1, "key");
  check(by == "key" || by == "value", "dictsort: 'by' must be key or value");
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict()->entries()) pairs.push_back(runtime.tuple({key, value}));
  const Value half = Value::integer(by == "value");
  return sorted(runtime, keyed(runtime, std::move(pairs), half, bound.flag(0)), bound.flag(2));
}

template <bool largest>
Value extreme(Runtime& runtime, const Value& input, const Bound& bound) {
  const auto values = keyed(runtime, elements_of(runtime.meter, input), bound.value_or(1, Value()), bound.flag(0));
  if (values.empty())
    return Value::undefined(runtime.meter, "there is no smallest or largest item, the sequence is empty");
  const auto before = [&](const Keyed& a, const Keyed& b) { return less(runtime.meter, a.key, b.key); };
  return (largest ? std::max_element(values.begin(), values.end(), before)
                  : std::min_element(values.begin(), values.end(), before))
      ->element;
}

Value unique(Runtime& runtime, const Value& input, const Bound& bound) {
  Dict seen(runtime.meter);
  std::vector<Value> result;
  for (const Keyed& value :
       keyed(runtime, elements_of(runtime.meter, input), bound.value_or(1, Value()), bound.flag(0))) {
    if (seen.find(value.key)) continue;
    seen.set(value.key, Value());
    result.push_back(value.element);
  }
  return runtime.iterator(std::move(result));
}

// ---- a filter or test for each element

Arguments without_first(const Arguments& arguments) {
  return {{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
}

Value map_attribute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  static constexpr Builtin kMap = {"map", nullptr, {"attribute", "default"}, 1};
  const Bound bound(kMap, arguments);
  std::vector<Value> result;
  for (const Value& element : elements_of(runtime.meter, input)) {
    const Value value = at_path(runtime, element, bound[0]);
    result.push_back(value.is_undefined() && bound.given(1) ? bound[1] : value);
  }
  return runtime.iterator(std::move(result));
}

Value map(Runtime& runtime, const Value& input, const Bound& bound) {
  if (!truth(input)) return runtime.iterator({});
  if (bound.all().positional.empty()) return map_attribute(runtime, input, bound.all());
  const std::string& name = text_of(bound.all().positional[0], "map");
  const Builtin* filter = find_filter(name);
  check(filter, "unknown filter '", name, "'");
  const Meter::Level level(runtime.meter);  // a filter that is map again, and so on
  const Arguments rest = without_first(bound.all());
  std::vector<Value> result;
  for (const Value& element : elements_of(runtime.meter, input)) {
    runtime.meter.step();
    result.push_back(filter->call(runtime, element, rest));
  }
  return runtime.iterator(std::move(result));
}

// Keeps the elements for which the named test, or without a name their truth, is as wanted.
Value choose(Runtime& runtime, const Value& input, const Arguments& arguments, const Value& path, bool wanted) {
  const Builtin* chosen = nullptr;
  if (!arguments.positional.empty()) {
    const std::string& name = text_of(arguments.positional[0], "select");
    chosen = find_test(name);
    check(chosen, "unknown test '", name, "'");
  }
  const Arguments rest = chosen ? without_first(arguments) : Arguments{};
  std::vector<Value> result;
  for (const Value& element : elements_of(runtime.meter, input)) {
    runtime.meter.step();
    const Value value = at_path(runtime, element, path);
    if (truth(chosen ? chosen->call(runtime, value, rest) : value) == wanted) result.push_back(element);
  }
  return runtime.iterator(std::move(result));
}

template <bool wanted>
Value select(Runtime& runtime, const Value& input, const Bound& bound) {
  return truth(input) ? choose(runtime, input, bound.all(), Value(), wanted) : runtime.iterator({});
}

template <bool wanted>
Value selectattr(Runtime& runtime, const Value& input, const Bound& bound) {
  if (!truth(input)) return runtime.iterator({});
  check(!bound.all().positional.empty(), "selectattr and rejectattr need an attribute's name");
  return choose(runtime, input, without_first(bound.all()), bound.all().positional[0], wanted);
}

constexpr Builtin kFilters[] = {
    {"capitalize", changed<to_capitalized>},
    {"count", count},
    {"d", default_filter, {"default_value", "boolean"}},
    {"default", default_filter, {"default_value", "boolean"}},
    {"dictsort", dictsort, {"case_sensitive", "by", "reverse"}},
    {"first", first},
    {"float", to_float, {"default"}},
    {"format", format_filter, {}, Builtin::kReadsAll},
    {"indent", indent, {"width", "first", "blank"}},
    {"int", to_int, {"default"}},
    {"items", items},
    {"join", join_filter, {"d", "attribute"}},
    {"last", last},
    {"length", count},
    {"list", list},
    {"lower", changed<to_lower>},
    {"map", map, {}, Builtin::kReadsAll},
    {"max", extreme<true>, {"case_sensitive", "attribute"}},
    {"min", extreme<false>, {"case_sensitive", "attribute"}},
    {"reject", select<false>, {}, Builtin::kReadsAll},
    {"rejectattr", selectattr<false>, {}, Builtin::kReadsAll},
    {"replace", replace_filter, {"old", "new", "count"}, 2},
    {"reverse", reverse},
    {"safe", safe},
    {"select", select<true>, {}, Builtin::kReadsAll},
    {"selectattr", selectattr<true>, {}, Builtin::kReadsAll},
    {"sort", sort, {"reverse", "case_sensitive", "attribute"}},
    {"string", stringify},
    {"title", changed<to_words_capitalized>},
    {"tojson", tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", trim, {"chars"}},
    {"unique", unique, {"case_sensitive", "attribute"}},
    {"upper", changed<to_upper>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kFilters), std::end(kFilters), [&](auto& entry) { return entry.name == name; });
  return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace quire::jinja
