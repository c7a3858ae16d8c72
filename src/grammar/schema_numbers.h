// The keywords about numbers of a schema, taken and made into rules.
//
// Errors   CheckError: bounds that are no numbers, that nothing lies between, or that have too many digits.
#pragma once
#include "grammar/rules.h"
#include "grammar/schema_object.h"

namespace quire::grammar {

Expression read_number(SchemaObject& schema);
Expression read_integer(SchemaObject& schema);

}  // namespace quire::grammar
