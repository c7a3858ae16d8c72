// The line `arena/...` of `quire bench metadata`: making all of the step metadata's buffers, and what that costs in
// memory.
#pragma once
#include <vector>

#include "short_line.h"

namespace quire::bench {

void add_arena_line(const Wanted& wanted, int threads, std::vector<ShortLine>& lines);

}  // namespace quire::bench
