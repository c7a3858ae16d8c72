// The values of "format" in JSON schema that are enforced, as regular expressions. They describe values that are surely
// right, not all that are (a date is never the 29th of February), but for their length: names of hosts may go on.
#pragma once
#include <string_view>

namespace quire::grammar {

const char* format_regex(std::string_view format);  // null: not known

}  // namespace quire::grammar
