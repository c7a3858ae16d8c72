#include "text/jinja_compare.h"
#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_show.h"
#include "text/jinja_tests.h"

namespace quire::text::jinja {
namespace {

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value map_attribute(Machine& machine, const Value& input, const Arguments& arguments) {
  const Bound bound("map", arguments, {"attribute", "default"}, 1);
  std::vector<Value> result;
  for (const Value& element : elements_of(machine.meter, input)) {
    const Value value = at_path(machine, element, bound[0]);
    result.push_back(value.is_undefined() && bound.given(1) && !bound[1].is_none() ? bound[1] : value);
  }
  return machine.iterator(std::move(result));
}

Value map(Machine& machine, const Value& input, const Arguments& arguments) {
  if (!truth(input)) return machine.iterator({});
  if (arguments.positional.empty()) return map_attribute(machine, input, arguments);
  const std::string& name = text_of(arguments.positional[0], "map");
  FilterFunction* filter = find_filter(name);
  check(filter, "unknown filter '", name, "'");
  const Meter::Level level(machine.meter);  // a filter that is map again, and so on
  const Arguments rest = without_first(arguments, 1);
  std::vector<Value> result;
  for (const Value& element : elements_of(machine.meter, input)) {
    machine.meter.step();
    result.push_back(filter(machine, element, rest));
  }
  return machine.iterator(std::move(result));
}

// Keeps the elements for which the named test, or without a name their truth, is as wanted.
Value choose(Machine& machine, const Value& input, const Arguments& arguments, const Value& path, bool wanted) {
  TestFunction* test = nullptr;
  if (!arguments.positional.empty()) {
    const std::string& name = text_of(arguments.positional[0], "select");
    test = find_test(name);
    check(test, "unknown test '", name, "'");
  }
  const Arguments rest = test ? without_first(arguments, 1) : Arguments{};
  std::vector<Value> result;
  for (const Value& element : elements_of(machine.meter, input)) {
    machine.meter.step();
    const Value value = at_path(machine, element, path);
    if ((test ? test(machine, value, rest) : truth(value)) == wanted) result.push_back(element);
  }
  return machine.iterator(std::move(result));
}

template <bool wanted>
Value select(Machine& machine, const Value& input, const Arguments& arguments) {
  if (!truth(input)) return machine.iterator({});
  return choose(machine, input, arguments, Value(), wanted);
}

template <bool wanted>
Value selectattr(Machine& machine, const Value& input, const Arguments& arguments) {
  if (!truth(input)) return machine.iterator({});
  check(!arguments.positional.empty(), "selectattr and rejectattr need an attribute's name");
  return choose(machine, input, without_first(arguments, 1), arguments.positional[0], wanted);
}

constexpr FilterEntry kChoiceFilters[] = {
    {"map", map},
    {"reject", select<false>},
    {"rejectattr", selectattr<false>},
    {"select", select<true>},
    {"selectattr", selectattr<true>},
};

}  // namespace

std::span<const FilterEntry> choice_filters() { return kChoiceFilters; }

}  // namespace quire::text::jinja
