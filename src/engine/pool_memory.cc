#include "engine/pool_memory.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace quire::engine {
namespace {

std::string gigabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

}  // namespace

int64_t pool_bytes(const model::ModelConfig& config, Dtype kv_type, int64_t tokens) {
  return tokens * 2 * config.layers * config.kv_heads * config.head_dim * size_of(kv_type);
}

int32_t default_pool_tokens(const model::ModelConfig& config, Dtype kv_type, int32_t context, int32_t page_size,
                            std::optional<int64_t> memory) {
  constexpr int64_t kContexts = 4, kShareOfMemory = 4;
  int64_t tokens = kContexts * context;
  if (memory) tokens = std::min(tokens, *memory / kShareOfMemory / pool_bytes(config, kv_type, 1));
  return static_cast<int32_t>(std::clamp<int64_t>(tokens, page_size, 1 << 30));
}

void check_pool_fits(const model::ModelConfig& config, Dtype kv_type, int32_t tokens, std::optional<int64_t> memory) {
  const int64_t bytes = pool_bytes(config, kv_type, tokens);
  check(!memory || bytes <= *memory, "the keys and values of ", tokens, " tokens take ", gigabytes(bytes), ", and ",
        gigabytes(memory.value_or(0)), " of memory are free, enough for ",
        memory.value_or(0) / pool_bytes(config, kv_type, 1), " tokens (--max-total-tokens)");
}

bool is_tight(int64_t bytes, std::optional<int64_t> memory) { return memory && bytes > *memory / 4 * 3; }

}  // namespace quire::engine
