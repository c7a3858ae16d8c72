// How many tokens' keys and values an engine keeps, beside the memory that there is for them.
//
// The pool is address space that becomes resident as it is used, so one that is far too large would start all the same
// and end in the middle of somebody's answer.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/types.h"
#include "model/config.h"
#include "model/eagle_head.h"

namespace quire::engine {

// Bytes that one token takes in the pool: its keys and values in all layers. With a draft head (eagle_drafts.h) also
// those of its layer, and its part of what is kept for each page.
int64_t pool_token_bytes(const model::ModelConfig& config, Dtype kv_type, int32_t page_size,
                         const model::EagleSpec* head = nullptr);

// Bytes beside the pool that a head takes which drafts trees: slots of branches, and what it says behind each of them.
struct DraftBranches {
  int32_t running, topk, steps;
};
int64_t draft_branch_bytes(const model::EagleSpec& head, Dtype kv_type, const DraftBranches& branches);

// Tokens of a pool that nobody gave a size: enough for some full contexts, within a part of the memory.
int32_t default_pool_tokens(int64_t token_bytes, int32_t context, int32_t page_size, std::optional<int64_t> memory);

// Throws CheckError that says how many tokens would fit, when these do not.
void check_pool_fits(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory);

// What an engine asks of its device's memory. Of a GPU's all is taken at once, weights, what a head's branches need and
// the pool, and whoever chooses a device before anything is loaded reckons by the same rule as the engine, which finds
// its weights there already.
struct MemoryDemand {
  int64_t weights = 0;   // bytes that are still to be loaded; 0: they are there
  int64_t branches = 0;  // draft_branch_bytes()
  int64_t token_bytes;   // pool_token_bytes()
  int32_t page_size, context;
  int32_t tokens = 0;  // of the pool; 0: as many as there is room for
};
struct GpuMemory {
  int64_t free, at_start;  // now, and before this process took any: others may have had a part
  double fraction;         // of the latter, that weights and pool may have together
};
struct GpuFit {
  int32_t tokens = 0;             // of the pool: those asked for, or all that there is room for
  int64_t needed = 0, there = 0;  // bytes, with the fewest tokens that are of use, or those asked for
  bool fits() const { return needed <= there; }
};
GpuFit fit_on_gpu(const MemoryDemand& demand, const GpuMemory& memory);

// Throws cuda::OutOfMemory that says what to do where the pool does not fit beside weights that are there.
int32_t pool_tokens_on_gpu(const MemoryDemand& demand, const GpuMemory& memory);

// A sentence for whoever started it, where little is left for anything else when the pool is full.
std::optional<std::string> tight_memory(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory);

}  // namespace quire::engine
