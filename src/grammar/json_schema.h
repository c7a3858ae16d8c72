// JSON schema to rules: the texts that they match are JSON and satisfy the schema.
//
// Not all texts that satisfy it: members stand in the order of "properties"; an object has no other members unless the
// schema names none or allows others by "additionalProperties"; strings with a pattern match it as a whole.
//
// Every keyword is enforced, an annotation, or not enforced, which is refused by name or, loosely, noted. Enforced are
// type, enum, const, properties, required, additionalProperties, propertyNames (of an object without properties, or
// fixed names), items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (json_formats.h),
// minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (schema_numbers.h), anyOf, oneOf (of alternatives
// that exclude each other, json_apart.h), allOf and $ref to the root or into its $defs or definitions, with what stands
// beside them where the two can be made one (json_merge.h).
//
// Errors   Refused that names the keyword and its place, like #/properties/tags: what is no schema and, strictly,
//          what is not enforced.
#pragma once
#include <cstddef>
#include <string_view>

#include "grammar/rules.h"
#include "grammar/schema_object.h"

namespace quire::grammar {

// unenforced: where the places of what is not enforced are noted; null: strictly.
Rules read_json_schema(std::string_view source, int most_depth, Places* unenforced = nullptr);
Rules any_json_object();

}  // namespace quire::grammar
