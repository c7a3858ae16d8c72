// The methods of strings, lists and dicts. These exist and no others: nothing that changes a value, nothing that leads
// out of the data.
//
//   str    capitalize count endswith find format index isalpha isdigit islower isspace isupper join lower lstrip
//          partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith strip
//          title upper
//   dict   copy get items keys values
//   list   copy count index (tuples: count index)
#pragma once
#include <string_view>

#include "text/jinja_value.h"

namespace quire::text::jinja {

struct MethodEntry {
  std::string_view name;
  MethodFunction* function;
};

const MethodEntry* find_method(const Value& value, std::string_view name);  // null: there is none

// Whether Python's type has a method of this name that templates cannot use. Such a name hides an entry of a dict, as
// it does there.
bool refused_method(const Value& value, std::string_view name);

Value replace_parts(Machine& machine, const Text& text, std::string_view old, std::string_view with, size_t most);

}  // namespace quire::text::jinja
