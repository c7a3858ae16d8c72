// Arithmetic and subscripts, as Python has them. Values are data: an attribute is an entry of a dict, one of the listed
// methods, or undefined; nothing else can be reached.
//
// Errors   CheckError: operands of the wrong types, division by zero, integers past 127 bits, limits.
#pragma once
#include <string_view>

#include "text/jinja_object.h"
#include "text/jinja_tree.h"

namespace quire::text::jinja {

Value calculate(Machine& machine, ArithmeticOperator op, const Value& left, const Value& right);
Value negate(const Value& value);
Value add(Machine& machine, const Value& left, const Value& right);

Value attribute_of(Machine& machine, const Value& value, std::string_view name);  // x.name: methods first
Value element_of(Machine& machine, const Value& value, const Value& key);         // x[key]: entries first
Value slice_of(Machine& machine, const Value& value, const Value& first, const Value& last, const Value& step);

// "a.b.0": the path that map(attribute=...) and its like follow. Not a string: one subscript.
Value at_path(Machine& machine, Value value, const Value& path);

}  // namespace quire::text::jinja
