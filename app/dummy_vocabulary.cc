#include "dummy_vocabulary.h"

#include <algorithm>

#include "base/check.h"
#include "text/byte_token.h"

namespace quire {

text::Vocabulary dummy_vocabulary(int32_t size) {
  constexpr int32_t kBytes = 256;
  check(size >= kBytes, "a vocabulary of ", size, " tokens has no place for all bytes");
  text::Vocabulary vocabulary;
  for (int32_t id = 0; id < size; ++id) {
    const char byte = static_cast<char>(id);
    vocabulary.tokens.add(id < kBytes ? text::letters_of_bytes({&byte, 1}) : text::letters_of_bytes(cat("<", id, ">")));
  }
  vocabulary.types.assign(static_cast<size_t>(size), text::TokenType::normal);
  vocabulary.mergeable.assign(static_cast<size_t>(size), true);
  return vocabulary;
}

}  // namespace quire
