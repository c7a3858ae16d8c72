// Whether two schemas surely exclude each other: what makes "one of them" the same as "any of them".
//
// They do when they want values of different types, or different fixed values, or objects with a member that both
// require and that has different fixed values (a tag).
#pragma once
#include <functional>
#include <string>

#include "grammar/schema_object.h"

namespace quire::grammar {

using FindReferred = std::function<const Json*(const std::string& reference)>;  // null: there is none

bool surely_apart(const Json& one, const Json& other, const FindReferred& find);

}  // namespace quire::grammar
