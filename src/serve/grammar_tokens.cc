#include "serve/grammar_tokens.h"

#include <algorithm>

namespace quire::serve {

grammar::Tokens grammar_tokens(const text::Tokenizer& tokenizer, int32_t vocabulary) {
  grammar::Tokens tokens{.pieces = std::vector<std::string>(static_cast<size_t>(vocabulary)),
                         .end_ids = tokenizer.vocabulary().end_ids};
  for (int32_t id = 0; id < std::min(vocabulary, tokenizer.size()); ++id)
    if (!tokenizer.is_special(id) && !tokenizer.is_end(id))
      tokens.pieces[static_cast<size_t>(id)] = tokenizer.piece(id);
  return tokens;
}

}  // namespace quire::serve
