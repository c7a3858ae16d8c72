// What the grammar compiler must know of a tokenizer. The model's vocabulary may be larger: what fills it up never
// stands in a text.
#pragma once
#include <cstdint>

#include "grammar/compiler.h"
#include "text/tokenizer.h"

namespace quire::serve {

grammar::Tokens grammar_tokens(const text::Tokenizer& tokenizer, int32_t vocabulary);

}  // namespace quire::serve
