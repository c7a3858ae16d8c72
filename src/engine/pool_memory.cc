#include "engine/pool_memory.h"

#include <algorithm>

#include "base/check.h"
#include "base/cuda.h"
#include "base/size_text.h"

namespace quire::engine {

namespace {

int64_t slot_bytes(const model::EagleSpec& head, Dtype kv_type) {
  const model::AttentionSpec& heads = head.layer.attention;
  return heads.kv_heads * (heads.key_dim + heads.value_dim) * size_of(kv_type);
}

}  // namespace

int64_t pool_token_bytes(const model::ModelConfig& config, Dtype kv_type, int32_t page_size,
                         const model::EagleSpec* head) {
  const int64_t own = config.kv_elements() * size_of(kv_type);
  if (!head) return own;
  const int64_t page_features = head->width * static_cast<int64_t>(sizeof(float));
  return own + slot_bytes(*head, kv_type) + (page_features + page_size - 1) / page_size;
}

int64_t draft_branch_bytes(const model::EagleSpec& head, Dtype kv_type, const DraftBranches& branches) {
  if (branches.topk == 1) return 0;
  const int64_t said = head.draft_vocabulary * static_cast<int64_t>(sizeof(float));
  return int64_t{branches.running} * branches.topk * (branches.steps * slot_bytes(head, kv_type) + said);
}

int32_t default_pool_tokens(int64_t token_bytes, int32_t context, int32_t page_size, std::optional<int64_t> memory) {
  constexpr int64_t kContexts = 4, kShareOfMemory = 4;
  int64_t tokens = kContexts * context;
  if (memory) tokens = std::min(tokens, *memory / kShareOfMemory / token_bytes);
  return static_cast<int32_t>(std::clamp<int64_t>(tokens, page_size, 1 << 30));
}

int64_t memory_for_pool(int64_t free, int64_t at_start, double fraction) {
  return std::max<int64_t>(0, free - static_cast<int64_t>(static_cast<double>(at_start) * (1 - fraction)));
}

int32_t most_pool_tokens(int64_t token_bytes, int32_t page_size, int64_t bytes) {
  const int64_t tokens = bytes / token_bytes - page_size;  // one page is nobody's
  return static_cast<int32_t>(std::clamp<int64_t>(tokens / page_size * page_size, page_size, 1 << 30));
}

void check_pool_fits(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory) {
  const int64_t bytes = tokens * token_bytes;
  check(!memory || bytes <= *memory, "the keys and values of ", tokens, " tokens take ", size_text(bytes), ", and ",
        size_text(memory.value_or(0)), " of memory are free, enough for ", memory.value_or(0) / token_bytes,
        " tokens (--max-total-tokens)");
}

void check_pool_fits_gpu(int64_t token_bytes, int32_t tokens, int64_t room, const char* advice) {
  const int64_t bytes = tokens * token_bytes;
  if (bytes <= room) return;
  throw cuda::OutOfMemory(cat("the keys and values of ", tokens, " tokens take ", size_text(bytes),
                              ", and the GPU has ", size_text(room), " for them: ", advice));
}

std::optional<std::string> tight_memory(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory) {
  const int64_t bytes = tokens * token_bytes;
  if (!memory || bytes <= *memory / 4 * 3) return std::nullopt;
  return cat("memory is tight: the keys and values of ", tokens, " tokens take ", size_text(bytes), ", and ",
             size_text(*memory), " are free");
}

}  // namespace quire::engine
