// Brings rules into a shape that xgrammar is fast with; they match what they matched before.
//
// - What it does with one rule grows with the square of its length: long sequences and texts become rules of their own.
//   Equal texts share theirs.
// - It unrolls a count, and the mask of every place takes milliseconds where many tokens are possible: a range of
//   counts of single characters becomes a rule that xgrammar counts the characters of.
#pragma once
#include "grammar/rules.h"

namespace quire::grammar {

void shape_rules(Rules& rules);

}  // namespace quire::grammar
