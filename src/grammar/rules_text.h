// Rules as xgrammar's EBNF, with names of our own: root, r1, r2, ... Only rules that the root leads to are written.
#pragma once
#include <string>

#include "grammar/rules.h"

namespace quire::grammar {

std::string rules_text(const Rules& rules);  // without dead ends

}  // namespace quire::grammar
