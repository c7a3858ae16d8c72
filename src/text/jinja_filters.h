// The filters behind `|`:
//
//   text      capitalize e escape forceescape format indent lower replace safe string title trim upper
//   numbers   abs float int round
//   lists     batch count dictsort first groupby items join last length list map max min reject rejectattr reverse
//             select selectattr slice sort sum unique
//   any       d default tojson
//
// map, select, reject, selectattr, rejectattr, unique, batch, slice, items and reverse give iterators, as in Jinja:
// walked once, true even when empty, without a length until `list` makes one.
#pragma once
#include <span>
#include <string_view>

#include "text/jinja_object.h"

namespace quire::text::jinja {

using FilterFunction = Value(Machine&, const Value& input, const Arguments&);

FilterFunction* find_filter(std::string_view name);  // null: there is none

struct FilterEntry {
  std::string_view name;
  FilterFunction* function;
};
std::span<const FilterEntry> text_filters();
std::span<const FilterEntry> number_filters();
std::span<const FilterEntry> list_filters();    // those that look at the whole
std::span<const FilterEntry> order_filters();   // those that compare elements
std::span<const FilterEntry> choice_filters();  // those that apply a filter or test to each element

}  // namespace quire::text::jinja
