// One schema that says what two say together: for "allOf", and for what stands beside "$ref", "anyOf" and "oneOf".
//
// References are followed, and annotations of the second are left out. Where the two contradict each other the result
// is false, which no value satisfies.
#pragma once
#include <optional>

#include "grammar/json_apart.h"
#include "grammar/schema_object.h"

namespace quire::grammar {

// Counts steps down from what is left; where none are, and where keywords cannot be made one, there is no result.
std::optional<Json> merged(const Json& one, const Json& other, const FindReferred& find, int& steps_left);

}  // namespace quire::grammar
