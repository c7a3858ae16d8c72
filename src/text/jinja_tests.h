// The tests behind `is`:
//
//   defined undefined none boolean true false integer float number string mapping sequence iterable callable escaped
//   odd even divisibleby lower upper sameas in eq == equalto ne != lt < lessthan le <= gt > greaterthan ge >= filter
//   test
#pragma once
#include <string_view>

#include "text/jinja_object.h"

namespace quire::text::jinja {

using TestFunction = bool(Machine&, const Value& value, const Arguments&);

TestFunction* find_test(std::string_view name);  // null: there is none

}  // namespace quire::text::jinja
