#include <algorithm>

#include "text/jinja_compare.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

Value count(Machine&, const Value& input, const Arguments& arguments) {
  const Bound bound("length", arguments, {});
  return Value::integer(static_cast<Integer>(length(input)));
}

Value first(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("first", arguments, {});
  Sequence* sequence = input.sequence();
  const bool iterator = sequence && sequence->kind == SequenceKind::iterator;
  if (iterator && sequence->next < sequence->elements.size()) return sequence->elements[sequence->next++];
  if (input.text() && !input.text()->bytes.empty()) return element_of(machine, input, Value::integer(0));
  const std::vector<Value> elements = elements_of(machine.meter, input);
  return elements.empty() ? Value::undefined(machine.meter, "there is no first item, the sequence is empty")
                          : elements.front();
}

Value last(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("last", arguments, {});
  check(iterable(input) && (!input.sequence() || input.sequence()->kind != SequenceKind::iterator), "a ", input.type(),
        " has no last item");
  if (input.text() && !input.text()->bytes.empty()) return element_of(machine, input, Value::integer(-1));
  const std::vector<Value> elements = elements_of(machine.meter, input);
  return elements.empty() ? Value::undefined(machine.meter, "there is no last item, the sequence is empty")
                          : elements.back();
}

Value list(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("list", arguments, {});
  return machine.list(elements_of(machine.meter, input));
}

Value items(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("items", arguments, {});
  if (input.is_undefined()) return machine.iterator({});
  check(input.dict(), "items needs a dict, not ", input.type());
  std::vector<Value> pairs;
  for (const auto& [key, value] : input.dict()->entries()) pairs.push_back(pair_of(machine.meter, key, value));
  return machine.iterator(std::move(pairs));
}

Value join(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound.given(0) ? show(machine.meter, bound[0]) : "";
  std::string result;
  bool at_start = true;
  for (const Value& element : elements_of(machine.meter, input)) {
    if (!at_start) result += separator;
    at_start = false;
    result += show(machine.meter, bound.given(1) ? at_path(machine, element, bound[1]) : element);
    machine.meter.check_bytes(result.size());
  }
  return machine.text(std::move(result));
}

Value reverse(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  if (input.text()) return slice_of(machine, input, Value(), Value(), Value::integer(-1));
  std::vector<Value> elements = elements_of(machine.meter, input);
  std::reverse(elements.begin(), elements.end());
  return machine.iterator(std::move(elements));
}

Value sum(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  Value total = bound.value_or(1, Value::integer(0));
  for (const Value& element : elements_of(machine.meter, input))
    total = add(machine, total, bound.given(0) ? at_path(machine, element, bound[0]) : element);
  return total;
}

size_t positive(const Bound& bound, std::string_view filter) {
  const Integer value = bound.integer(0, 0);
  check(value > 0 && value <= 0x7fffffff, filter, " needs a positive number");
  return static_cast<size_t>(value);
}

Value batch(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  const size_t size = positive(bound, "batch");
  const std::vector<Value> elements = elements_of(machine.meter, input);
  std::vector<Value> batches;
  for (size_t at = 0; at < elements.size(); at += size) {
    const size_t end = std::min(at + size, elements.size());
    std::vector<Value> part(elements.begin() + static_cast<std::ptrdiff_t>(at),
                            elements.begin() + static_cast<std::ptrdiff_t>(end));
    if (bound.given(1) && !bound[1].is_none()) {
      machine.meter.check_items(size);
      part.resize(size, bound[1]);
    }
    batches.push_back(machine.list(std::move(part)));
  }
  return machine.iterator(std::move(batches));
}

Value slice(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  const size_t slices = positive(bound, "slice");
  machine.meter.check_items(slices);
  const std::vector<Value> elements = elements_of(machine.meter, input);
  const size_t least = elements.size() / slices, longer = elements.size() % slices;
  std::vector<Value> result;
  auto at = elements.begin();
  for (size_t i = 0; i < slices; ++i) {
    const auto end = at + static_cast<std::ptrdiff_t>(least + (i < longer ? 1 : 0));
    std::vector<Value> part(at, end);
    if (bound.given(1) && !bound[1].is_none() && i >= longer) part.push_back(bound[1]);
    result.push_back(machine.list(std::move(part)));
    at = end;
  }
  return machine.iterator(std::move(result));
}

constexpr FilterEntry kListFilters[] = {
    {"batch", batch},  {"count", count}, {"first", first},     {"items", items}, {"join", join}, {"last", last},
    {"length", count}, {"list", list},   {"reverse", reverse}, {"slice", slice}, {"sum", sum},
};

}  // namespace

std::span<const FilterEntry> list_filters() { return kListFilters; }

}  // namespace quire::text::jinja
