#include "text/jinja_methods.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "text/jinja_compare.h"
#include "text/jinja_format.h"
#include "text/jinja_object.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

size_t most_of(Integer count) { return count < 0 || count > 0x7fffffff ? kNowhere : static_cast<size_t>(count); }

Value texts(Machine& machine, const std::vector<std::string_view>& pieces, bool markup) {
  machine.meter.check_items(pieces.size());
  std::vector<Value> elements;
  elements.reserve(pieces.size());
  for (const std::string_view piece : pieces) elements.push_back(machine.text(std::string(piece), markup));
  return machine.list(std::move(elements));
}

// ---- strings: taking off and cutting

template <Side side>
Value strip_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("strip", arguments, {"chars"});
  const Text& text = *self.text();
  machine.meter.work_on_bytes(text.bytes.size());
  const bool spaces = !bound.given(0) || bound[0].is_none();
  return machine.text(std::string(spaces ? strip(text.bytes, side) : strip(text.bytes, side, bound.text(0, ""))),
                      text.markup);
}

template <bool from_right>
Value split_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"});
  const Text& text = *self.text();
  const size_t most = most_of(bound.integer(1, -1));
  machine.meter.work_on_bytes(text.bytes.size());
  if (!bound.given(0) || bound[0].is_none())
    return texts(machine, from_right ? split_at_spaces_from_right(text.bytes, most) : split_at_spaces(text.bytes, most),
                 text.markup);
  const std::string separator = bound.text(0, "");
  check(!separator.empty(), "split needs a separator that is not empty");
  return texts(machine,
               from_right ? split_at_from_right(text.bytes, separator, most) : split_at(text.bytes, separator, most),
               text.markup);
}

Value splitlines_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("splitlines", arguments, {});
  machine.meter.work_on_bytes(self.text()->bytes.size());
  return texts(machine, split_lines(self.text()->bytes), self.text()->markup);
}

Value three_parts(Machine& machine, const Text& text, size_t at, size_t bytes) {
  std::vector<Value> parts;
  for (const auto& [from, count] : {std::pair{size_t{0}, at}, {at, bytes}, {at + bytes, kNowhere}})
    parts.push_back(machine.text(text.bytes.substr(from, count), text.markup));
  return make_sequence(machine.meter, SequenceKind::tuple, std::move(parts));
}

template <bool from_right>
Value partition_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("partition", arguments, {"sep"}, 1);
  const Text& text = *self.text();
  const std::string separator = bound.text(0, "");
  check(!separator.empty(), "partition needs a separator that is not empty");
  machine.meter.work_on_bytes(text.bytes.size());
  const size_t at = from_right ? find_last(text.bytes, separator) : find(text.bytes, separator);
  if (at != kNowhere) return three_parts(machine, text, at, separator.size());
  return three_parts(machine, text, from_right ? 0 : text.bytes.size(), 0);
}

template <bool prefix>
Value remove_end_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound(prefix ? "removeprefix" : "removesuffix", arguments, {"end"}, 1);
  const std::string end = bound.text(0, "");
  std::string_view text = self.text()->bytes;
  if (prefix && text.starts_with(end))
    text.remove_prefix(end.size());
  else if (!prefix && text.ends_with(end))
    text.remove_suffix(end.size());
  return machine.text(std::string(text), self.text()->markup);
}

// ---- strings: searching

template <bool at_start>
Value has_end_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound(at_start ? "startswith" : "endswith", arguments, {"text"}, 1);
  const std::string_view text = self.text()->bytes;
  const auto fits = [&](const Value& end) {
    const std::string& part = text_of(end, at_start ? "startswith" : "endswith");
    machine.meter.step();
    return at_start ? text.starts_with(part) : text.ends_with(part);
  };
  const Sequence* any = bound[0].sequence();
  if (!any || !any->tuple_like()) return Value::boolean(fits(bound[0]));
  return Value::boolean(std::any_of(any->elements.begin(), any->elements.end(), fits));
}

Integer position_of(Machine& machine, const Text& text, const std::string& part, bool from_right) {
  machine.meter.work_on_bytes(text.bytes.size());
  const size_t at = from_right ? find_last(text.bytes, part) : find(text.bytes, part);
  return at == kNowhere ? -1 : static_cast<Integer>(count_code_points(std::string_view(text.bytes).substr(0, at)));
}

template <bool from_right>
Value find_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("find", arguments, {"part"}, 1);
  return Value::integer(position_of(machine, *self.text(), text_of(bound[0], "find"), from_right));
}

Value index_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("index", arguments, {"part"}, 1);
  const Integer at = position_of(machine, *self.text(), text_of(bound[0], "index"), false);
  check(at >= 0, "index: the string does not contain ", repr(machine.meter, bound[0]));
  return Value::integer(at);
}

Value count_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("count", arguments, {"part"}, 1);
  const std::string& part = text_of(bound[0], "count");
  machine.meter.work_on_bytes(self.text()->bytes.size());
  if (part.empty()) return Value::integer(static_cast<Integer>(length(self)) + 1);
  return Value::integer(static_cast<Integer>(count_parts(self.text()->bytes, part)));
}

// ---- strings: letters

template <std::string (*change)(std::string_view)>
Value changed_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("this method", arguments, {});
  return machine.text(change(self.text()->bytes), self.text()->markup);
}

template <bool (*is)(std::string_view)>
Value is_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("this method", arguments, {});
  machine.meter.work_on_bytes(self.text()->bytes.size());
  return Value::boolean(is(self.text()->bytes));
}

template <bool (*is)(char32_t)>
bool all_are(std::string_view text) {
  for (size_t at = 0, bytes; at < text.size(); at += bytes) {
    const CodePoint point = code_point_at(text, at);
    if (!is(point.value)) return false;
    bytes = point.bytes;
  }
  return !text.empty();
}

utf8proc_category_t category(char32_t value) {
  return value < kInvalidByte ? utf8proc_category(static_cast<utf8proc_int32_t>(value)) : UTF8PROC_CATEGORY_CN;
}

bool is_letter(char32_t value) {
  const auto kind = category(value);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t c) {
  const bool raised = c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079);
  return category(c) == UTF8PROC_CATEGORY_ND || raised || (c >= 0x2080 && c <= 0x2089);
}

// ---- strings: putting together

std::string escaped_for(const Text& text, const Value& part, std::string_view wanted_by) {
  const std::string& bytes = text_of(part, wanted_by);
  return text.markup && !part.text()->markup ? escape_html(bytes) : bytes;
}

Value replace_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  const Text& text = *self.text();
  return replace_parts(machine, text, escaped_for(text, bound[0], "replace"), escaped_for(text, bound[1], "replace"),
                       most_of(bound.integer(2, -1)));
}

Value join_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("join", arguments, {"iterable"}, 1);
  const Text& separator = *self.text();
  std::string result;
  bool first = true;
  for (const Value& element : elements_of(machine.meter, bound[0])) {
    if (!first) result += separator.bytes;
    first = false;
    result += escaped_for(separator, element, "join");
    machine.meter.check_bytes(result.size());
  }
  return machine.text(std::move(result), separator.markup);
}

Value format_method(Machine& machine, const Value& self, const Arguments& arguments) {
  return format_braces(machine, *self.text(), arguments);
}

// ---- dicts

Value items_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("items", arguments, {});
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict()->entries()) pairs.push_back(pair_of(machine.meter, key, value));
  return make_sequence(machine.meter, SequenceKind::items, std::move(pairs));
}

Value keys_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("keys", arguments, {});
  return make_sequence(machine.meter, SequenceKind::keys, keys_of(*self.dict()));
}

Value values_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("values", arguments, {});
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict()->entries()) values.push_back(value);
  return make_sequence(machine.meter, SequenceKind::values, std::move(values));
}

Value get_method(Machine&, const Value& self, const Arguments& arguments) {
  const Bound bound("get", arguments, {"key", "default"}, 1);
  const Value* found = self.dict()->find(bound[0]);
  return found ? *found : bound.value_or(1, Value());
}

Value copy_method(Machine&, const Value& self, const Arguments& arguments) {
  const Bound bound("copy", arguments, {});
  return self;  // values do not change, so a copy is the same
}

// ---- lists

Value list_count_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("count", arguments, {"value"}, 1);
  const auto& elements = self.sequence()->elements;
  return Value::integer(std::count_if(elements.begin(), elements.end(),
                                      [&](const Value& element) { return equal(machine.meter, element, bound[0]); }));
}

Value list_index_method(Machine& machine, const Value& self, const Arguments& arguments) {
  const Bound bound("index", arguments, {"value"}, 1);
  const auto& elements = self.sequence()->elements;
  const auto found = std::find_if(elements.begin(), elements.end(),
                                  [&](const Value& element) { return equal(machine.meter, element, bound[0]); });
  check(found != elements.end(), "index: ", repr(machine.meter, bound[0]), " is not in the list");
  return Value::integer(found - elements.begin());
}

constexpr MethodEntry kText[] = {
    {"capitalize", changed_method<to_capitalized>},
    {"count", count_method},
    {"endswith", has_end_method<false>},
    {"find", find_method<false>},
    {"format", format_method},
    {"index", index_method},
    {"isalpha", is_method<all_are<is_letter>>},
    {"isdigit", is_method<all_are<is_digit>>},
    {"islower", is_method<is_lower>},
    {"isspace", is_method<all_are<is_space>>},
    {"isupper", is_method<is_upper>},
    {"join", join_method},
    {"lower", changed_method<to_lower>},
    {"lstrip", strip_method<Side::left>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_end_method<true>},
    {"removesuffix", remove_end_method<false>},
    {"replace", replace_method},
    {"rfind", find_method<true>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", has_end_method<true>},
    {"strip", strip_method<Side::both>},
    {"title", changed_method<to_title>},
    {"upper", changed_method<to_upper>},
};
constexpr MethodEntry kDict[] = {
    {"copy", copy_method}, {"get", get_method},       {"items", items_method},
    {"keys", keys_method}, {"values", values_method},
};
constexpr MethodEntry kList[] = {
    {"copy", copy_method},
    {"count", list_count_method},
    {"index", list_index_method},
};
constexpr MethodEntry kTuple[] = {
    {"count", list_count_method},
    {"index", list_index_method},
};

constexpr std::string_view kRefusedText[] = {"casefold",    "center",   "encode",    "expandtabs",   "format_map",
                                             "isalnum",     "isascii",  "isdecimal", "isidentifier", "isnumeric",
                                             "isprintable", "istitle",  "ljust",     "maketrans",    "rindex",
                                             "rjust",       "swapcase", "translate", "zfill"};
constexpr std::string_view kRefusedDict[] = {"clear", "fromkeys", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kRefusedList[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

std::span<const MethodEntry> methods_of(const Value& value) {
  if (value.text()) return kText;
  if (value.dict()) return kDict;
  const Sequence* sequence = value.sequence();
  if (!sequence) return {};
  if (sequence->kind == SequenceKind::list) return kList;
  return sequence->tuple_like() ? std::span<const MethodEntry>(kTuple) : std::span<const MethodEntry>();
}

std::span<const std::string_view> refused_methods_of(const Value& value) {
  if (value.text()) return kRefusedText;
  if (value.dict()) return kRefusedDict;
  const Sequence* sequence = value.sequence();
  const bool list = sequence && sequence->kind == SequenceKind::list;
  return list ? std::span<const std::string_view>(kRefusedList) : std::span<const std::string_view>();
}

}  // namespace

const MethodEntry* find_method(const Value& value, std::string_view name) {
  const auto methods = methods_of(value);
  const auto found =
      std::find_if(methods.begin(), methods.end(), [&](const MethodEntry& entry) { return entry.name == name; });
  return found == methods.end() ? nullptr : &*found;
}

bool refused_method(const Value& value, std::string_view name) {
  const auto names = refused_methods_of(value);
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value replace_parts(Machine& machine, const Text& text, std::string_view old, std::string_view with, size_t most) {
  machine.meter.work_on_bytes(text.bytes.size());
  const std::string_view source = text.bytes;
  std::string result;
  size_t at = 0;
  for (size_t done = 0; done < most; ++done) {
    // An empty old text lies before every character and at the end.
    const size_t found = old.empty() ? (done == 0            ? 0
                                        : at < source.size() ? at + code_point_at(source, at).bytes
                                                             : kNowhere)
                                     : find(source, old, at);
    if (found == kNowhere) break;
    result.append(source, at, found - at).append(with);
    machine.meter.check_bytes(result.size());
    at = found + old.size();
  }
  result.append(source, at);
  return machine.text(std::move(result), text.markup);
}

}  // namespace quire::text::jinja
