#include <algorithm>

#include "text/jinja_compare.h"
#include "text/jinja_methods.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

Value missing(Machine& machine, const Value& value, const Value& key) {
  constexpr size_t kMostShown = 60;
  std::string shown = repr(machine.meter, key);
  if (shown.size() > kMostShown) shown = cat(std::string_view(shown).substr(0, kMostShown), "...");
  return Value::undefined(machine.meter, cat("a ", value.type(), " has no element ", shown));
}

// A method, or what a type names as its own: the halves of a group, a namespace's attributes.
std::optional<Value> own_attribute(Machine& machine, const Value& value, std::string_view name) {
  if (const MethodEntry* method = find_method(value, name))
    return make_method(machine.meter, value, method->name, method->function);
  if (refused_method(value, name))
    return Value::undefined(machine.meter,
                            cat("the method '", name, "' of a ", value.type(), " is not supported in templates"));
  if (Object* object = value.object()) return object->attribute(machine, name);
  const Sequence* sequence = value.sequence();
  if (!sequence || sequence->kind != SequenceKind::group) return std::nullopt;
  if (name == "grouper") return sequence->elements[0];
  if (name == "list") return sequence->elements[1];
  return std::nullopt;
}

// The place of index i among n, counted from the end when negative; none when outside.
std::optional<size_t> place(Integer index, size_t count) {
  const Integer size = static_cast<Integer>(count);
  const Integer at = index < 0 ? index + size : index;
  return at >= 0 && at < size ? std::optional(static_cast<size_t>(at)) : std::nullopt;
}

std::optional<Value> character(Machine& machine, const Text& text, Integer index) {
  auto at = place(index, text.code_points);
  if (!at) return std::nullopt;
  if (text.ascii()) return machine.text(text.bytes.substr(*at, 1), text.markup);
  machine.meter.work_on_bytes(text.bytes.size());
  size_t byte = 0;
  for (; *at > 0; --*at) byte += code_point_at(text.bytes, byte).bytes;
  return machine.text(text.bytes.substr(byte, code_point_at(text.bytes, byte).bytes), text.markup);
}

std::optional<Value> entry(Machine& machine, const Value& value, const Value& key) {
  if (const Dict* dict = value.dict()) {
    const Value* found = dict->find(key);
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto index = key.integer();
  if (!index) return std::nullopt;
  if (const Text* text = value.text()) return character(machine, *text, *index);
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

std::optional<Integer> bound(const Value& value) {
  if (value.is_none()) return std::nullopt;
  value.check_defined();
  check(value.integer().has_value(), "a slice needs integers, not ", value.type());
  return value.integer();
}

// Python's rules: bounds past an end are moved to it, those left out mean the whole.
Range slice_range(Integer size, const Value& first, const Value& last, const Value& step) {
  constexpr Integer kFar = Integer{1} << 40;  // longer than anything, and its negative exists
  const Integer stride = std::clamp(bound(step).value_or(1), -kFar, kFar);
  check(stride != 0, "a slice's step cannot be zero");
  const Integer lowest = stride < 0 ? -1 : 0, highest = stride < 0 ? size - 1 : size;
  const auto clamp = [&](std::optional<Integer> at, Integer otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 && *at >= -size ? *at + size : *at, lowest, highest);
  };
  const Integer from = clamp(bound(first), stride < 0 ? highest : lowest);
  const Integer to = clamp(bound(last), stride < 0 ? lowest : highest);
  const Integer distance = stride < 0 ? from - to : to - from, length = stride < 0 ? -stride : stride;
  return {from, distance <= 0 ? 0 : (distance - 1) / length + 1, stride};
}

// In bytes, and after the last one the end.
std::vector<size_t> code_point_starts(Machine& machine, const Text& text) {
  machine.meter.work_on_bytes(text.bytes.size());
  std::vector<size_t> starts;
  starts.reserve(text.code_points + 1);
  for (size_t at = 0; at < text.bytes.size(); at += code_point_at(text.bytes, at).bytes) starts.push_back(at);
  starts.push_back(text.bytes.size());
  return starts;
}

Value slice_text(Machine& machine, const Text& text, const Value& first, const Value& last, const Value& step) {
  const std::vector<size_t> starts = text.ascii() ? std::vector<size_t>() : code_point_starts(machine, text);
  const auto start = [&](Integer at) {
    return starts.empty() ? static_cast<size_t>(at) : starts[static_cast<size_t>(at)];
  };
  const Range range = slice_range(static_cast<Integer>(text.code_points), first, last, step);
  std::string result;
  if (range.step == 1) {
    result = text.bytes.substr(start(range.first), start(range.first + range.count) - start(range.first));
  } else {
    Integer at = range.first;
    for (Integer i = 0; i < range.count; ++i, at += range.step)
      result.append(text.bytes, start(at), start(at + 1) - start(at));
  }
  return machine.text(std::move(result), text.markup);
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Value attribute_of(Machine& machine, const Value& value, std::string_view name) {
  value.check_defined();
  if (const auto found = own_attribute(machine, value, name)) return *found;
  if (const Dict* dict = value.dict())
    if (const Value* found = dict->find(name)) return *found;
  return Value::undefined(machine.meter, cat("a ", value.type(), " has no attribute '", name, "'"));
}

Value element_of(Machine& machine, const Value& value, const Value& key) {
  value.check_defined();
  if (const auto found = entry(machine, value, key)) return *found;
  if (const Text* name = key.text())
    if (const auto found = own_attribute(machine, value, name->bytes)) return *found;
  return missing(machine, value, key);
}

Value slice_of(Machine& machine, const Value& value, const Value& first, const Value& last, const Value& step) {
  value.check_defined();
  if (const Text* text = value.text()) return slice_text(machine, *text, first, last, step);
  const Sequence* sequence = value.sequence();
  check(sequence && sequence->indexed(), "a ", value.type(), " cannot be sliced");
  const Range range = slice_range(static_cast<Integer>(sequence->elements.size()), first, last, step);
  std::vector<Value> elements;
  Integer at = range.first;
  for (Integer i = 0; i < range.count; ++i, at += range.step)
    elements.push_back(sequence->elements[static_cast<size_t>(at)]);
  const SequenceKind kind = sequence->kind == SequenceKind::group ? SequenceKind::tuple : sequence->kind;
  return make_sequence(machine.meter, kind, std::move(elements));
}

Value at_path(Machine& machine, Value value, const Value& path) {
  if (!path.text()) return path.is_none() ? value : element_of(machine, value, path);
  for (const std::string_view part : split_at(path.text()->bytes, ".", kNowhere)) {
    const bool index = all_digits(part) && part.size() < 10;
    const Value key = index ? Value::integer(std::stoi(std::string(part))) : machine.text(std::string(part));
    value = element_of(machine, value, key);
  }
  return value;
}

}  // namespace quire::text::jinja
