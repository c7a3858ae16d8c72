// The line `arena/...` of `quire bench metadata`: making all of the step metadata's buffers, and what that costs in
// memory.
#pragma once
#include <string>
#include <vector>

#include "attn/metadata.h"
#include "short_line.h"

namespace quire::bench {

inline constexpr attn::Limits kArenaLimits = {.batch = 160,
                                              .context = 131072,
                                              .page_size = PageSize(16),
                                              .topk = 4,
                                              .draft_steps = 4,
                                              .draft_tokens = 8,
                                              .heads = 32,
                                              .kv_heads = 8};
std::string arena_name();  // "arena/context=131072/batch=160/nodes=8"

void add_arena_line(const Wanted& wanted, int threads, std::vector<ShortLine>& lines);

}  // namespace quire::bench
