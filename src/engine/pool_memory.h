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

// Of a GPU: bytes that the pool may take when it and all that was taken before have this fraction of what was free at
// the start, where others may have had a part, and the tokens that fit there. free: when all but the pool is taken.
int64_t memory_for_pool(int64_t free, int64_t at_start, double fraction);
int32_t most_pool_tokens(int64_t token_bytes, int32_t page_size, int64_t bytes);

// Throws CheckError that says how many tokens would fit, when these do not.
void check_pool_fits(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory);

// The same of a GPU, whose pool takes its memory at once: throws cuda::OutOfMemory with what to do.
void check_pool_fits_gpu(int64_t token_bytes, int32_t tokens, int64_t room, const char* advice);

// A sentence for whoever started it, where little is left for anything else when the pool is full.
std::optional<std::string> tight_memory(int64_t token_bytes, int32_t tokens, std::optional<int64_t> memory);

}  // namespace quire::engine
