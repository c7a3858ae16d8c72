// Python's two ways to format: `"%s" % x` and `"{}".format(x)`.
//
// Errors   CheckError: a malformed form, a missing argument, a type that does not fit its conversion, limits.
#pragma once
#include "text/jinja_object.h"

namespace quire::text::jinja {

// A tuple gives one argument for each conversion, a dict those with names, anything else is the only one.
Value format_percent(Machine& machine, const Text& form, const Value& values);
Value format_braces(Machine& machine, const Text& form, const Arguments& arguments);

}  // namespace quire::text::jinja
