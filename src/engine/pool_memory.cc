#include "engine/pool_memory.h"

#include <algorithm>

#include "base/check.h"
#include "base/cuda.h"
#include "base/size_text.h"

namespace quire::engine {

namespace {

// A pool of fewer tokens than a request of some length takes is of no use to a server.
constexpr int32_t kLeastTokens = 4096;
// What comes to lie beside weights before anybody looks at what is left for the pool: the code of kernels, workspaces,
// and what allocations are rounded up by.
constexpr int64_t kBesideWeights = int64_t{512} << 20;
// For the rows of a step and for graphs, where somebody names the pool's tokens and so may use more than the fraction.
constexpr int64_t kBesidePool = int64_t{1} << 30;

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

void check_pool_fits(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory) {
  const int64_t bytes = tokens * token_bytes;
  check(!memory || bytes <= *memory, "the keys and values of ", tokens, " tokens take ", size_text(bytes), ", and ",
        size_text(memory.value_or(0)), " of memory are free, enough for ", memory.value_or(0) / token_bytes,
        " tokens (--max-total-tokens)");
}

GpuFit fit_on_gpu(const MemoryDemand& demand, const GpuMemory& memory) {
  const bool is_given = demand.tokens > 0;
  const auto rest = static_cast<int64_t>(static_cast<double>(memory.at_start) * (1 - memory.fraction));
  const int64_t there = std::max<int64_t>(0, memory.free - (is_given ? std::min(rest, kBesidePool) : rest));
  const int64_t before = demand.weights + (demand.weights > 0 ? kBesideWeights : 0) + demand.branches;
  const PageSize page_size(demand.page_size);
  const auto bytes_of_pages = [&](int64_t pages) {  // and of one that is nobody's
    return (pages + 1) * demand.page_size * demand.token_bytes;
  };
  const int32_t least = is_given ? demand.tokens : std::min(kLeastTokens, demand.context);
  GpuFit fit{.tokens = least, .needed = before + bytes_of_pages(page_size.pages_for(least)), .there = there};
  if (is_given || !fit.fits()) return fit;
  const int64_t pages = (there - before) / bytes_of_pages(0) - 1;
  fit.tokens = static_cast<int32_t>(std::min<int64_t>(pages * demand.page_size, 1 << 30));
  return fit;
}

int32_t pool_tokens_on_gpu(const MemoryDemand& demand, const GpuMemory& memory) {
  const GpuFit fit = fit_on_gpu(demand, memory);
  if (fit.fits()) return fit.tokens;
  throw cuda::OutOfMemory(cat("the keys and values of ", fit.tokens, " tokens take ",
                              size_text(fit.needed - demand.branches), ", and the GPU has ",
                              size_text(std::max<int64_t>(0, fit.there - demand.branches)), " for them: ",
                              demand.tokens > 0 ? "lower --max-total-tokens"
                                                : "raise --mem-fraction-static, or ask for fewer with "
                                                  "--max-total-tokens"));
}

std::optional<std::string> tight_memory(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory) {
  const int64_t bytes = tokens * token_bytes;
  if (!memory || bytes <= *memory / 4 * 3) return std::nullopt;
  return cat("memory is tight: the keys and values of ", tokens, " tokens take ", size_text(bytes), ", and ",
             size_text(*memory), " are free");
}

}  // namespace quire::engine
