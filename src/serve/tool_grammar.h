// Where the model must call a function: the texts that it may write, as a JSON schema. They are an array of
// {"name": ..., "arguments": {...}}, or one such object, which ToolParser reads back (kArrayForm).
//
// Schemas of functions that are not strict are loose: what they say is kept to where that is possible, and what is not
// is named. Where a schema is too much as a whole, any object is taken.
//
// Errors   ApiError 400: a strict function's schema cannot be enforced.
#pragma once
#include <string_view>
#include <vector>

#include "grammar/call_grammars.h"
#include "serve/tool_choice.h"

namespace quire::serve {

// arguments_key: what the model is used to call them.
// Loose if any of the functions is.
grammar::Source tool_grammar(const std::vector<ToolFunction>& functions, bool only_one, std::string_view arguments_key);
// The same with any object for the arguments of functions that are not strict.
grammar::Source loose_tool_grammar(std::vector<ToolFunction> functions, bool only_one, std::string_view arguments_key);

// The first of the two that compiles.
grammar::Source enforceable_tool_grammar(const std::vector<ToolFunction>& functions, bool only_one,
                                         std::string_view arguments_key, grammar::CallGrammars& grammars,
                                         Ignored& ignored);

}  // namespace quire::serve
