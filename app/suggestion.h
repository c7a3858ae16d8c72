// What somebody may have meant who mistyped a word.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// The known word that takes the fewest slips of the finger (a letter missing, too many, wrong, or swapped with the
// next), the first of equals. "" when all take more than a third of the word.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

// "; did you mean serve?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace quire
