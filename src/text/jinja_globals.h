// The functions that every template can call: range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
#pragma once
#include <string_view>

#include "text/jinja_object.h"

namespace quire::text::jinja {

Object* find_global(std::string_view name);  // null: there is none

}  // namespace quire::text::jinja
