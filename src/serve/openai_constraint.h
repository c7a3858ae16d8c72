// What a caller allows the answer to be, by any of the names in use:
//
//   response_format                        OpenAI's: json_object, json_schema; llama.cpp's: json_object with a schema
//   json_schema, regex, ebnf               SGLang's
//   guided_json, _regex, _grammar, _choice, structured_outputs {json, regex, grammar, choice, json_object}    vLLM's
//   grammar                                llama.cpp's: GBNF, as far as it is ours
//
// Schemas are loose unless they say "strict": what cannot be enforced is named, not refused (request_reader.h).
//
// Errors   ApiError 400 that names the field: more than one of them, and what is none.
#pragma once
#include <optional>
#include <string>

#include "grammar/compiler.h"
#include "serve/fields.h"

namespace quire::serve {

struct Constraint {
  grammar::Source source;
  std::string field;  // that it came from
};
std::optional<Constraint> read_openai_constraint(Fields& fields);

}  // namespace quire::serve
