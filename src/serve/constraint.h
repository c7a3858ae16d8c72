// What a caller allows the answer to be, by any of the names in use:
//
//   response_format                        OpenAI's: json_object, json_schema; llama.cpp's: json_object with a schema
//   json_schema, regex, ebnf               SGLang's
//   guided_json, _regex, _grammar, _choice, structured_outputs {json, regex, grammar, choice, json_object}    vLLM's
//   grammar                                llama.cpp's: GBNF, as far as it is ours
//
// Schemas are loose unless they say "strict" or the fields are read strictly: what cannot be enforced is named, not
// refused.
//
// Errors   ApiError 400 that names the field: more than one of them, what is none, and what cannot be compiled.
#pragma once
#include <optional>
#include <string>

#include "engine/request.h"
#include "grammar/call_grammars.h"
#include "serve/fields.h"

namespace quire::serve {

struct Constraint {
  grammar::Source source;
  std::string field;  // that it came from
};
std::optional<Constraint> read_openai_constraint(Fields& fields);  // by any of them
std::optional<Constraint> read_sglang_constraint(Fields& fields);  // by SGLang's

void constrain(const Constraint& constraint, grammar::CallGrammars& grammars, engine::Request& request);
// Names what a loose source leaves out, as "response_format#/properties/tags/uniqueItems".
void note_unenforced(const Constraint& constraint, grammar::CallGrammars& grammars, Ignored& ignored);

}  // namespace quire::serve
