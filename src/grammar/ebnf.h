// Grammars in xgrammar's (and GBNF's) form: rules `name ::= alternatives`, beginning with root; texts in quotes,
// classes in brackets, groups, counts (* + ? {n} {n,} {n,m}), comments after #.
//
// xgrammar's additions to that form (macros, attributes of rules, lookahead) are refused.
//
// Errors   Refused: wrong syntax, a rule that is missing or there twice, nesting beyond the limit, counts over
//          kMostRepeats.
#pragma once
#include <string_view>

#include "grammar/rules.h"

namespace quire::grammar {

Rules read_ebnf(std::string_view source, int most_depth);

}  // namespace quire::grammar
