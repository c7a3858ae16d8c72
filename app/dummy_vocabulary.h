// A vocabulary for a model that has no tokenizer (--load-format dummy): bytes, and then tokens that no text has.
#pragma once
#include <cstdint>

#include "text/vocabulary.h"

namespace quire {

text::Vocabulary dummy_vocabulary(int32_t size);

}  // namespace quire
