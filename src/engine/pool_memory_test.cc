#include "engine/pool_memory.h"

#include <gtest/gtest.h>

#include "base/cuda.h"
#include "base/testing/expect_refused.h"

namespace quire::engine {
namespace {

model::ModelConfig smollm2() {
  model::ModelConfig config{};
  config.layers.assign(30, {.attention = {.heads = 9, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .scale = 0.125f},
                            .feed_forward = {.width = 1536}});
  return config;
}
constexpr int64_t kTokenBytes = 2 * 30 * 3 * 64 * 2;  // bf16
constexpr int64_t kGigabyte = 1'000'000'000;

TEST(PoolMemory, IsCountedInAllLayers) {
  EXPECT_EQ(pool_token_bytes(smollm2(), Dtype::bf16, 16), kTokenBytes);
  EXPECT_EQ(pool_token_bytes(smollm2(), Dtype::f32, 16), 2 * kTokenBytes);
}

TEST(PoolMemory, HasAHeadsLayerAndWhatItKeepsOfEachPage) {
  model::EagleSpec head{};
  head.width = 576;
  head.layer.attention = {.heads = 9, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .scale = 0.125f};
  EXPECT_EQ(pool_token_bytes(smollm2(), Dtype::bf16, 16, &head), kTokenBytes + 2 * 3 * 64 * 2 + 576 * 4 / 16);
  EXPECT_EQ(pool_token_bytes(smollm2(), Dtype::bf16, 1, &head), kTokenBytes + 2 * 3 * 64 * 2 + 576 * 4);
}

// 64 requests of 64 branches of 63 tokens are as much as a pool of a quarter of a million tokens of the head's layer.
TEST(PoolMemory, IsLessByTheBranchesOfAHeadThatDraftsTrees) {
  model::EagleSpec head{};
  head.draft_vocabulary = 16384;
  head.layer.attention = {.heads = 9, .kv_heads = 3, .key_dim = 64, .value_dim = 64, .scale = 0.125f};
  EXPECT_EQ(draft_branch_bytes(head, Dtype::bf16, {.running = 64, .topk = 1, .steps = 7}), 0);
  EXPECT_EQ(draft_branch_bytes(head, Dtype::bf16, {.running = 64, .topk = 64, .steps = 63}),
            64 * 64 * (63 * 2 * 3 * 64 * 2 + 16384 * 4));
}

TEST(PoolMemory, ByDefaultIsFourContextsWithinAQuarter) {
  EXPECT_EQ(default_pool_tokens(kTokenBytes, 8192, 16, 100 * kGigabyte), 4 * 8192);
  EXPECT_EQ(default_pool_tokens(kTokenBytes, 8192, 16, 4000 * kTokenBytes), 1000);
  EXPECT_EQ(default_pool_tokens(kTokenBytes, 8192, 16, 0), 16);
  EXPECT_EQ(default_pool_tokens(kTokenBytes, 8192, 16, std::nullopt), 4 * 8192);
}

TEST(PoolMemory, OnAGpuIsWhatTheFractionLeaves) {
  EXPECT_EQ(memory_for_pool(90 * kGigabyte, 100 * kGigabyte, 0.75), 65 * kGigabyte);
  EXPECT_EQ(memory_for_pool(10 * kGigabyte, 100 * kGigabyte, 0.75), 0);
  EXPECT_EQ(memory_for_pool(60 * kGigabyte, 64 * kGigabyte, 0.25), 12 * kGigabyte) << "beside another process";
  EXPECT_EQ(most_pool_tokens(kTokenBytes, 16, 1005 * kTokenBytes), 976);  // whole pages, without nobody's
  EXPECT_EQ(most_pool_tokens(kTokenBytes, 16, 0), 16);
}

TEST(PoolMemory, WhatCannotFitIsRefusedWithWhatWould) {
  expect_refused([] { check_pool_fits(kTokenBytes, 1 << 30, 8 * kGigabyte); },
                 "the keys and values of 1073741824 tokens take 24.7 TB, and 8.0 GB of memory are free, enough for "
                 "347222 tokens (--max-total-tokens)");
  check_pool_fits(kTokenBytes, 1000, 1000 * kTokenBytes);
  check_pool_fits(kTokenBytes, 1 << 30, std::nullopt);  // nobody knows
}

TEST(PoolMemory, WhatCannotFitOnAGpuIsOutOfMemoryAndSaysWhatToDo) {
  check_pool_fits_gpu(kTokenBytes, 1000, 1000 * kTokenBytes, "");
  try {
    check_pool_fits_gpu(kTokenBytes, 300'000, kGigabyte, "lower --max-total-tokens");
    FAIL() << "it was taken";
  } catch (const cuda::OutOfMemory& error) {
    EXPECT_EQ(error.what(), std::string("the keys and values of 300000 tokens take 6.9 GB, and the GPU has 1.0 GB for "
                                        "them: lower --max-total-tokens"));
  }
}

TEST(PoolMemory, IsTightWhereLittleIsLeft) {
  EXPECT_EQ(tight_memory(kTokenBytes, 300'000, 8 * kGigabyte),
            "memory is tight: the keys and values of 300000 tokens take 6.9 GB, and 8.0 GB are free");
  EXPECT_EQ(tight_memory(kTokenBytes, 200'000, 8 * kGigabyte), std::nullopt);
  EXPECT_EQ(tight_memory(kTokenBytes, 300'000, std::nullopt), std::nullopt);
}

}  // namespace
}  // namespace quire::engine
