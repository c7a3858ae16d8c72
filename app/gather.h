// Every thread of a team at work at the same time: what wakes a sleeping team before a measurement, and what a fork and
// join of the whole team costs.
#pragma once
#include "base/exec.h"

namespace quire::bench {

// Hands each thread one item and returns when all of them have been in theirs together.
void gather(Exec& exec);

}  // namespace quire::bench
