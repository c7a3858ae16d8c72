#include <algorithm>
#include <span>

#include "jinja/builtins.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/strings.h"

namespace quire::jinja {
namespace {

size_t most_of(Integer count) { return count < 0 || count > 0x7fffffff ? kNowhere : static_cast<size_t>(count); }

// Bytes which are about to be gone through.
std::string_view counted(Runtime& runtime, std::string_view bytes) {
  runtime.meter.work_on_bytes(bytes.size());
  return bytes;
}

std::string_view bytes_of(Runtime& runtime, const Value& self) { return counted(runtime, self.text()->bytes); }

// ---- strings

template <Side side>
Value str_strip(Runtime& runtime, const Value& self, const Bound& bound) {
  return strip_ends(runtime, self.text()->bytes, side, bound);
}

// Of at most one piece too many: whoever cuts a text stops there.
Value texts(Runtime& runtime, const std::vector<std::string_view>& pieces) {
  runtime.meter.check_items(pieces.size());
  std::vector<Value> elements;
  elements.reserve(pieces.size());
  for (const std::string_view piece : pieces) elements.push_back(runtime.text(piece));
  return runtime.list(std::move(elements));
}

template <bool from_right>
Value str_split(Runtime& runtime, const Value& self, const Bound& bound) {
  const std::string_view text = bytes_of(runtime, self);
  const size_t asked = most_of(bound.integer(1, -1)), most = std::min(asked, runtime.meter.most_items());
  if (!bound.given(0)) {
    check(!from_right || asked == kNowhere, "rsplit with 'maxsplit' needs a separator");
    return texts(runtime, split_at_spaces(text, most));
  }
  const std::string_view separator = counted(runtime, bound.text(0));
  check(!separator.empty(), "split needs a separator that is not empty");
  return texts(runtime, from_right ? split_at_from_right(text, separator, most) : split_at(text, separator, most));
}

Value str_splitlines(Runtime& runtime, const Value& self, const Bound&) {
  return texts(runtime, split_lines(bytes_of(runtime, self), runtime.meter.most_items()));
}

template <bool prefix>
Value str_remove_end(Runtime& runtime, const Value& self, const Bound& bound) {
  std::string_view text = self.text()->bytes;
  const std::string_view end = counted(runtime, bound.text(0));
  if (prefix && text.starts_with(end)) text.remove_prefix(end.size());
  if (!prefix && text.ends_with(end)) text.remove_suffix(end.size());
  return runtime.text(text);
}

template <bool at_start>
Value str_has_end(Runtime& runtime, const Value& self, const Bound& bound) {
  const std::string_view text = self.text()->bytes;
  const auto fits = [&](const Value& end) {
    const std::string_view part = counted(runtime, text_of(end, at_start ? "startswith" : "endswith"));
    runtime.meter.step();
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  const Sequence* any = bound[0].sequence();
  if (!any || any->kind != Sequence::Kind::tuple) return Value::boolean(fits(bound[0]));
  return Value::boolean(std::any_of(any->elements.begin(), any->elements.end(), fits));
}

template <bool from_right>
Value str_find(Runtime& runtime, const Value& self, const Bound& bound) {
  const std::string_view text = bytes_of(runtime, self), part = counted(runtime, text_of(bound[0], "find"));
  const size_t at = from_right ? find_last(text, part) : find(text, part);
  return Value::integer(at == kNowhere ? -1 : static_cast<Integer>(count_code_points(text.substr(0, at))));
}

template <std::string (*change)(std::string_view)>
Value str_changed(Runtime& runtime, const Value& self, const Bound&) {
  return runtime.text(change(self.text()->bytes));
}

Value str_isdigit(Runtime& runtime, const Value& self, const Bound&) {
  const std::string_view text = bytes_of(runtime, self);
  size_t at = 0;
  while (at < text.size() && is_digit(code_point_at(text, at).value)) at += code_point_at(text, at).bytes;
  return Value::boolean(!text.empty() && at == text.size());
}

Value str_replace(Runtime& runtime, const Value& self, const Bound& bound) {
  return replace_parts(runtime, self.text()->bytes, text_of(bound[0], "replace"), text_of(bound[1], "replace"),
                       bound.integer(2, -1));
}

Value str_join(Runtime& runtime, const Value& self, const Bound& bound) {
  std::string result;
  bool at_start = true;
  for (const Value& element : elements_of(runtime.meter, bound[0])) {
    if (!at_start) result += self.text()->bytes;
    at_start = false;
    result += text_of(element, "join");
    runtime.meter.check_bytes(result.size());
  }
  return runtime.text(std::move(result));
}

// The argument that the name or number of a field in braces stands for; empty: the next one.
const Value& argument_of(const Arguments& arguments, std::string_view field, size_t& next) {
  for (const auto& [name, value] : arguments.named)
    if (name == field) return value;
  const bool number = field.size() == 1 && field[0] >= '0' && field[0] <= '9';
  const size_t at = field.empty() ? next++ : number ? static_cast<size_t>(field[0] - '0') : arguments.positional.size();
  check(at < arguments.positional.size(), "format: there is no argument for '{", field, "}'");
  return arguments.positional[at];
}

// Fields without a width or a precision: {} {0} {name} {name:d} {name:s}.
Value str_format(Runtime& runtime, const Value& self, const Bound& bound) {
  const std::string_view format = bytes_of(runtime, self);
  std::string result;
  for (size_t at = 0, next = 0; at < format.size();) {
    const size_t brace = std::min(format.find_first_of("{}", at), format.size());
    result += format.substr(at, brace - at);
    at = brace + 1;
    if (brace == format.size()) break;
    if (format.substr(at).starts_with(format[brace])) {
      result += format[at++];
      continue;
    }
    const size_t end = format.find('}', at);
    check(format[brace] == '{' && end != format.npos, "format: a single '", format.substr(brace, 1), "'");
    std::string_view field = format.substr(at, end - at);
    at = end + 1;
    if (field.ends_with(":d") || field.ends_with(":s")) field.remove_suffix(2);
    check(field.find_first_of(":!.[{") == field.npos, "format: '{", field, "}' is not supported");
    runtime.meter.step();
    runtime.meter.walk(bound.all().named.size());
    result += str(runtime.meter, argument_of(bound.all(), field, next));
    runtime.meter.check_bytes(result.size());
  }
  return runtime.text(std::move(result));
}

// ---- dicts and lists

template <bool with_keys, bool with_values>
Value dict_view(Runtime& runtime, const Value& self, const Bound&) {
  std::vector<Value> elements;
  for (const auto& [key, value] : self.dict()->entries())
    elements.push_back(with_keys && with_values ? runtime.tuple({key, value}) : with_keys ? key : value);
  return runtime.sequence(Sequence::Kind::view, std::move(elements));
}

Value dict_get(Runtime&, const Value& self, const Bound& bound) {
  const Value* found = self.dict()->find(bound[0]);
  return found ? *found : bound.value_or(1, Value());
}

Value dict_copy(Runtime&, const Value& self, const Bound&) { return self; }  // values do not change

Value list_count(Runtime& runtime, const Value& self, const Bound& bound) {
  const auto& elements = self.sequence()->elements;
  return Value::integer(std::count_if(elements.begin(), elements.end(),
                                      [&](const Value& element) { return equal(runtime.meter, element, bound[0]); }));
}

Value list_index(Runtime& runtime, const Value& self, const Bound& bound) {
  const auto& elements = self.sequence()->elements;
  const auto found = std::find_if(elements.begin(), elements.end(),
                                  [&](const Value& element) { return equal(runtime.meter, element, bound[0]); });
  if (found == elements.end()) throw CheckError(cat("index: ", repr(runtime.meter, bound[0]), " is not in the list"));
  return Value::integer(found - elements.begin());
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", str_changed<to_capitalized>},
    {"endswith", str_has_end<false>, {"suffix"}, 1},
    {"find", str_find<false>, {"sub"}, 1},
    {"format", str_format, {}, Builtin::kReadsAll},
    {"isdigit", str_isdigit},
    {"join", str_join, {"iterable"}, 1},
    {"lower", str_changed<to_lower>},
    {"lstrip", str_strip<Side::left>, {"chars"}},
    {"removeprefix", str_remove_end<true>, {"prefix"}, 1},
    {"removesuffix", str_remove_end<false>, {"suffix"}, 1},
    {"replace", str_replace, {"old", "new", "count"}, 2},
    {"rfind", str_find<true>, {"sub"}, 1},
    {"rsplit", str_split<true>, {"sep", "maxsplit"}},
    {"rstrip", str_strip<Side::right>, {"chars"}},
    {"split", str_split<false>, {"sep", "maxsplit"}},
    {"splitlines", str_splitlines},
    {"startswith", str_has_end<true>, {"prefix"}, 1},
    {"strip", str_strip<Side::both>, {"chars"}},
    {"title", str_changed<to_title>},
    {"upper", str_changed<to_upper>},
};
constexpr Builtin kDictMethods[] = {
    {"copy", dict_copy},
    {"get", dict_get, {"key", "default"}, 1},
    {"items", dict_view<true, true>},
    {"keys", dict_view<true, false>},
    {"values", dict_view<false, true>},
};
constexpr Builtin kListMethods[] = {
    {"count", list_count, {"value"}, 1},
    {"index", list_index, {"value"}, 1},
};

constexpr std::string_view kRefusedOfDicts[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kRefusedOfLists[] = {"append", "clear",  "copy",    "extend", "insert",
                                                "pop",    "remove", "reverse", "sort"};

bool is_list(const Value& value) { return value.sequence() && value.sequence()->kind <= Sequence::Kind::tuple; }

}  // namespace

const Builtin* find_method(const Value& value, std::string_view name) {
  std::span<const Builtin> methods;
  if (value.text()) methods = kStringMethods;
  if (value.dict()) methods = kDictMethods;
  if (is_list(value)) methods = kListMethods;
  const auto found = std::find_if(methods.begin(), methods.end(), [&](auto& entry) { return entry.name == name; });
  return found == methods.end() ? nullptr : &*found;
}

bool refused_method(const Value& value, std::string_view name) {
  std::span<const std::string_view> names;
  if (value.dict()) names = kRefusedOfDicts;
  if (is_list(value)) names = kRefusedOfLists;
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value strip_ends(Runtime& runtime, std::string_view text, Side side, const Bound& bound) {
  runtime.meter.work_on_bytes(text.size());
  if (!bound.given(0)) return runtime.text(strip(text, side));
  const std::string_view chars = bound.text(0);
  runtime.meter.check_items(chars.size());  // they become a list, in order
  runtime.meter.step(chars.size());
  return runtime.text(strip(text, side, chars));
}

Value replace_parts(Runtime& runtime, std::string_view text, std::string_view old, std::string_view with,
                    Integer most) {
  runtime.meter.work_on_bytes(text.size());
  const size_t limit = most_of(most);
  std::string result;
  size_t at = 0;
  for (size_t done = 0; done < limit; ++done) {
    size_t found = find(text, old, at);
    if (old.empty() && done > 0)  // it lies before every character and at the end
      found = at < text.size() ? at + code_point_at(text, at).bytes : kNowhere;
    if (found == kNowhere) break;
    result.append(text, at, found - at).append(with);
    runtime.meter.check_bytes(result.size());
    at = found + old.size();
  }
  return runtime.text(result.append(text, at));
}

Value format_percent(Runtime& runtime, std::string_view format, const Value& values) {
  const Sequence* given = values.sequence();
  const bool tuple = given && given->kind == Sequence::Kind::tuple;
  const size_t count = tuple ? given->elements.size() : 1;
  std::string result;
  size_t used = 0;
  for (size_t at = 0; at < format.size();) {
    const size_t percent = std::min(format.find('%', at), format.size());
    result += format.substr(at, percent - at);
    at = percent + 2;
    if (percent == format.size()) break;
    const std::string_view conversion = format.substr(percent, 2);
    if (conversion == "%%") {
      result += '%';
      continue;
    }
    check(conversion == "%s" || conversion == "%d", "'", conversion, "' in a format is not supported, only %s and %d");
    check(used < count, "'%': not enough arguments for the format");
    const Value& value = tuple ? given->elements[used] : values;
    ++used;
    check(conversion == "%s" || value.integer(), "'%d' needs an integer, not ", value.type());
    result += conversion == "%s" ? str(runtime.meter, value) : to_string(*value.integer());
    runtime.meter.check_bytes(result.size());
  }
  check(used == count, "'%': not all arguments were used by the format");
  return runtime.text(std::move(result));
}

}  // namespace quire::jinja
