// JSON schema to rules: the texts that they match are JSON and satisfy the schema.
//
// Not all texts that satisfy it: members stand in the order of "properties"; an object has no other members unless the
// schema names none or allows others by "additionalProperties"; strings with a pattern match it as a whole.
//
// Fails closed: every keyword is enforced, an annotation, or refused by name. Enforced are type, enum, const,
// properties, required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, maxLength, pattern,
// format (json_formats.h), minimum, maximum, exclusiveMinimum, exclusiveMaximum, anyOf, oneOf (of alternatives that
// exclude each other, json_apart.h), allOf (of one schema) and $ref to the root or into its $defs or definitions.
//
// Errors   CheckError that names the keyword and its place, like #/properties/tags.
#pragma once
#include <cstddef>
#include <string_view>

#include "grammar/rules.h"

namespace quire::grammar {

Rules read_json_schema(std::string_view source, int most_depth);
Rules any_json_object();

}  // namespace quire::grammar
