// Truth, equality, order and membership, as Python has them.
#pragma once
#include "text/jinja_value.h"

namespace quire::text::jinja {

bool truth(const Value& value);
bool equal(Meter& meter, const Value& left, const Value& right);
bool less(Meter& meter, const Value& left, const Value& right);  // throws when the types have no order
bool at_most(Meter& meter, const Value& left, const Value& right);
bool identical(const Value& left, const Value& right);  // Python's `is`, for constants and shared values
bool contains(Meter& meter, const Value& container, const Value& element);

// How many elements or code points; throws for values without a length.
size_t length(const Value& value);

// The elements that `for` would see: a string's characters, a dict's keys. An iterator is then used up.
// Throws for values that cannot be walked.
std::vector<Value> elements_of(Meter& meter, const Value& value);
bool iterable(const Value& value);

}  // namespace quire::text::jinja
