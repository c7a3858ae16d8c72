// Template source to tree: the statements. Text that templates print is never parsed again.
//
// Statements: for (with else and an inline if), if / elif / else, set (also of a block), macro, call, filter, with,
// raw, break, continue, generation. Other templates (extends, include, import, block) do not exist here.
//
// Errors   CheckError with the line and the reason: wrong syntax, an unknown tag, an unknown filter or test outside of
//          any `if`, a limit.
#pragma once
#include <string_view>

#include "text/jinja_limits.h"
#include "text/jinja_tree.h"

namespace quire::text::jinja {

Tree parse_template(std::string_view source, const TemplateLimits& limits);

}  // namespace quire::text::jinja
