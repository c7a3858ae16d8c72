// The K/V pool in tokens, for metrics and load reports: each token's place is free, cached or used.
#pragma once
#include <cstdint>

#include "engine/engine.h"

namespace quire::serve {

struct PoolTokens {
  int64_t total;
  int64_t free;    // in nobody's hands
  int64_t cached;  // held by the prefix tree alone: free as soon as somebody needs it
  int64_t used;    // held by running requests

  double usage() const { return total ? static_cast<double>(used) / static_cast<double>(total) : 0; }
};

inline PoolTokens pool_tokens(const engine::EngineStats& stats) {
  const auto tokens = [&](int64_t pages) { return pages * stats.page_size; };
  return {.total = tokens(stats.total_pages),
          .free = tokens(stats.free_pages),
          .cached = tokens(stats.evictable_pages),
          .used = tokens(stats.total_pages - stats.free_pages - stats.evictable_pages)};
}

// The part of all prompts' tokens that was found in the prefix tree.
inline double cache_hit_rate(const engine::EngineStats& stats) {
  return stats.prompt_tokens
             ? static_cast<double>(stats.cached_prompt_tokens) / static_cast<double>(stats.prompt_tokens)
             : 0;
}

}  // namespace quire::serve
