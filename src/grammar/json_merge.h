// One schema that says what two say together: for "allOf", and for what stands beside "$ref", "anyOf" and "oneOf".
//
// References are followed, and annotations of the second are left out. Where the two contradict each other the result
// is false, which no value satisfies.
#pragma once
#include <optional>

#include "grammar/json_apart.h"
#include "grammar/schema_object.h"

namespace quire::grammar {

std::optional<Json> merged(const Json& one, const Json& other, const FindReferred& find);  // none: it is beyond us

}  // namespace quire::grammar
