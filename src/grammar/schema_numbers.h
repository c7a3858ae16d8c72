// The keywords about numbers of a schema, taken and made into rules. "multipleOf" is enforced where it is seen in the
// last digits (10, 25, 0.01), where bounds leave few numbers, and where it says nothing about whole numbers (1, 0.5).
//
// Errors   Refused: bounds that are no numbers, that nothing lies between, or that have too many digits.
#pragma once
#include "grammar/rules.h"
#include "grammar/schema_object.h"

namespace quire::grammar {

Expression read_number(SchemaObject& schema);
Expression read_integer(SchemaObject& schema);

}  // namespace quire::grammar
