// Regular expressions, as far as they describe a regular language: literals, classes, groups, alternatives, counts.
//
// The whole text matches, so ^ at the beginning and $ at the end of an alternative say nothing new and are allowed
// there. Letters, digits and white space are ASCII's; a dot is any character but the ends of lines. Lazy counts match
// what greedy ones match.
//
// Errors   Refused: wrong syntax; what needs more than a finite automaton or is not here (assertions, references to
//          groups, flags, properties of characters); nesting beyond the limit; counts over kMostRepeats.
#pragma once
#include <string_view>

#include "grammar/rules.h"

namespace quire::grammar {

Expression read_regex(std::string_view source, int most_depth);

}  // namespace quire::grammar
