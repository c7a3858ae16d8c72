#include <algorithm>

#include "text/jinja_compare.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

// An element and what it is compared by.
struct Keyed {
  Value key;
  Value element;
};

Value without_case(Machine& machine, const Value& value) {
  return value.text() ? machine.text(to_lower(value.text()->bytes)) : value;
}

Value key_of(Machine& machine, const Value& element, const Value& path, bool with_case) {
  const Value key = at_path(machine, element, path);
  return with_case ? key : without_case(machine, key);
}

std::vector<Keyed> keyed(Machine& machine, const Value& input, const Value& path, bool with_case) {
  std::vector<Keyed> result;
  for (const Value& element : elements_of(machine.meter, input))
    result.push_back({key_of(machine, element, path, with_case), element});
  return result;
}

// Equal keys keep their order, also in reverse.
void sort_by_key(Machine& machine, std::vector<Keyed>& values, bool reverse) {
  std::stable_sort(values.begin(), values.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(machine.meter, b.key, a.key) : less(machine.meter, a.key, b.key);
  });
}

std::vector<Value> elements(std::vector<Keyed> values) {
  std::vector<Value> result;
  result.reserve(values.size());
  for (Keyed& value : values) result.push_back(std::move(value.element));
  return result;
}

// "a,b" sorts by a, then by b.
Value multi_key(Machine& machine, const Value& element, const Value& paths, bool with_case) {
  if (!paths.text()) return key_of(machine, element, paths, with_case);
  std::vector<Value> keys;
  for (const std::string_view path : split_at(paths.text()->bytes, ",", kNowhere))
    keys.push_back(key_of(machine, element, machine.text(std::string(path)), with_case));
  return machine.list(std::move(keys));
}

Value sort(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> values;
  for (const Value& element : elements_of(machine.meter, input))
    values.push_back({multi_key(machine, element, bound.value_or(2, Value()), bound.flag(1, false)), element});
  sort_by_key(machine, values, bound.flag(0, false));
  return machine.list(elements(std::move(values)));
}

Value dictsort(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  input.check_defined();
  check(input.dict(), "dictsort needs a dict, not ", input.type());
  const std::string by = bound.text(1, "key");
  check(by == "key" || by == "value", "dictsort: 'by' must be key or value");
  std::vector<Keyed> values;
  for (const auto& [key, value] : input.dict()->entries()) {
    const Value& compared = by == "key" ? key : value;
    values.push_back(
        {bound.flag(0, false) ? compared : without_case(machine, compared), pair_of(machine.meter, key, value)});
  }
  sort_by_key(machine, values, bound.flag(2, false));
  return machine.list(elements(std::move(values)));
}

template <bool largest>
Value extreme(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Keyed> values = keyed(machine, input, bound.value_or(1, Value()), bound.flag(0, false));
  if (values.empty())
    return Value::undefined(machine.meter, "there is no smallest or largest item, the sequence is empty");
  const auto before = [&](const Keyed& a, const Keyed& b) { return less(machine.meter, a.key, b.key); };
  return (largest ? std::max_element(values.begin(), values.end(), before)
                  : std::min_element(values.begin(), values.end(), before))
      ->element;
}

Value unique(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  Dict seen(machine.meter);
  std::vector<Value> result;
  for (const Keyed& value : keyed(machine, input, bound.value_or(1, Value()), bound.flag(0, false))) {
    if (seen.find(value.key)) continue;
    seen.set(value.key, Value());
    result.push_back(value.element);
  }
  return machine.iterator(std::move(result));
}

Value groupby(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const auto grouper = [&](const Value& element) {
    const Value key = at_path(machine, element, bound[0]);
    return key.is_undefined() && bound.given(1) ? bound[1] : key;
  };
  std::vector<Keyed> values;
  for (const Value& element : elements_of(machine.meter, input)) {
    const Value key = grouper(element);
    values.push_back({bound.flag(2, false) ? key : without_case(machine, key), element});
  }
  sort_by_key(machine, values, false);
  std::vector<Value> groups;
  for (size_t at = 0; at < values.size();) {
    size_t end = at + 1;
    while (end < values.size() && equal(machine.meter, values[end].key, values[at].key)) ++end;
    std::vector<Value> members;
    for (size_t i = at; i < end; ++i) members.push_back(values[i].element);
    const Value name = grouper(values[at].element);
    groups.push_back(make_sequence(machine.meter, SequenceKind::group, {name, machine.list(std::move(members))}));
    at = end;
  }
  return machine.list(std::move(groups));
}

constexpr FilterEntry kOrderFilters[] = {
    {"dictsort", dictsort},  {"groupby", groupby}, {"max", extreme<true>},
    {"min", extreme<false>}, {"sort", sort},       {"unique", unique},
};

}  // namespace

std::span<const FilterEntry> order_filters() { return kOrderFilters; }

}  // namespace quire::text::jinja
