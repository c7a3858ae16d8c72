// Where generation stops, beyond what files say outright: many name only one of the tokens that end a turn, a message
// or a text.
#pragma once
#include <cstdint>
#include <vector>

#include "text/vocabulary.h"

namespace quire::text {

// The ids in `named`, and those of the vocabulary's added tokens whose names are known to end something. Ascending.
std::vector<int32_t> end_tokens(const Vocabulary& vocabulary, std::vector<int32_t> named);

}  // namespace quire::text
