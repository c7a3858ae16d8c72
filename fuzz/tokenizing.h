// A tokenizer made of a fuzzed vocabulary, put to use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "fuzz.h"
#include "text/tokenizer.h"

namespace quire::fuzz {

inline void use(const text::Tokenizer& tokenizer) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids =
        tokenizer.encode("Hello <s>wor\u00e9ld</s>,  12\n\tx\xff<|im_end|> ab a", {.parse_special = parse_special});
    for (const int32_t id : ids) promise(id >= 0 && id < tokenizer.size(), "ids are those of the vocabulary");
    for (const bool skip_special : {false, true}) {
      const std::string decoded = tokenizer.decode(ids, skip_special);
      promise(is_utf8(decoded), "decoding gives valid UTF-8");
    }
  }
  for (int32_t id = 0; id < tokenizer.size() && id < 64; ++id) {
    (void)tokenizer.decode(std::vector{id});
    (void)tokenizer.find(tokenizer.piece(id));
  }
}

}  // namespace quire::fuzz
