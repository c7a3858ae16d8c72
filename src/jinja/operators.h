// Truth, comparison, arithmetic, subscripts and iteration, as Python has them. Values are data: an attribute is an
// entry of a dict, one of the listed methods, or undefined; nothing else can be reached.
//
// Errors   CheckError: operands of the wrong types, division by zero, integers past 127 bits, limits.
#pragma once
#include <string_view>
#include <vector>

#include "jinja/builtins.h"

namespace quire::jinja {

bool truth(const Value& value);
bool equal(Meter& meter, const Value& left, const Value& right);
bool less(Meter& meter, const Value& left, const Value& right);  // throws when the types have no order
bool contains(Meter& meter, const Value& container, const Value& element);

// + - * / // % == != < <= > >= in, by their symbols; null: there is no such operator.
using BinaryOperator = Value(Runtime&, const Value& left, const Value& right);
BinaryOperator* find_operator(std::string_view symbol);
using UnaryOperator = Value(const Value& value);
UnaryOperator negate, negation;  // -x, not x

Value attribute_of(Runtime& runtime, const Value& value, std::string_view name);  // x.name: methods first
Value element_of(Runtime& runtime, const Value& value, const Value& key);         // x[key]: entries first
Value slice_of(Runtime& runtime, const Value& value, const Value& first, const Value& last, const Value& step);
Value at_path(Runtime& runtime, Value value, const Value& path);  // "a.b.0", as in map(attribute=...); none: the value

size_t length(const Value& value);  // elements or code points; throws for values without a length
bool iterable(const Value& value);
// What `for` would see: a string's characters, a dict's keys. An iterator is then used up.
std::vector<Value> elements_of(Meter& meter, const Value& value);

}  // namespace quire::jinja
