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

MemoryDemand demand(int32_t tokens = 0) {
  return {.token_bytes = kTokenBytes, .page_size = 16, .context = 8192, .tokens = tokens};
}

TEST(PoolMemory, OnAGpuIsWhatTheFractionLeaves) {
  const auto tokens_in = [](int64_t free, int64_t at_start, double fraction) {
    return fit_on_gpu(demand(), {free, at_start, fraction}).tokens;
  };
  const auto tokens_of = [](int64_t bytes) { return static_cast<int32_t>(bytes / (16 * kTokenBytes) - 1) * 16; };
  EXPECT_EQ(tokens_in(90 * kGigabyte, 100 * kGigabyte, 0.75), tokens_of(65 * kGigabyte));
  EXPECT_EQ(tokens_in(60 * kGigabyte, 64 * kGigabyte, 0.25), tokens_of(12 * kGigabyte)) << "beside another process";
  MemoryDemand with_branches = demand();
  with_branches.branches = 2 * kGigabyte;
  EXPECT_EQ(fit_on_gpu(with_branches, {90 * kGigabyte, 100 * kGigabyte, 0.75}).tokens, tokens_of(63 * kGigabyte));
}

// As few as a request of some length takes, or the context where that is shorter; and a page that is nobody's.
TEST(PoolMemory, OnAGpuHasRoomForSomeTokensOrDoesNotFit) {
  const GpuMemory enough{(4096 + 16) * kTokenBytes + kGigabyte, 4 * kGigabyte, 0.75};
  EXPECT_TRUE(fit_on_gpu(demand(), enough).fits());
  EXPECT_EQ(fit_on_gpu(demand(), enough).tokens, 4096);
  const GpuMemory less{enough.free - 1, enough.at_start, enough.fraction};
  EXPECT_FALSE(fit_on_gpu(demand(), less).fits());
  MemoryDemand short_texts = demand();
  short_texts.context = 1000;
  EXPECT_TRUE(fit_on_gpu(short_texts, less).fits());
  EXPECT_FALSE(fit_on_gpu(demand(), {kGigabyte / 2, 10 * kGigabyte, 0.9}).fits());
}

// Between two notions of what fits, a device would be chosen on which the engine then cannot be made.
TEST(PoolMemory, WhatFitsBeforeWeightsAreLoadedFitsBesideThem) {
  constexpr double kFraction = 0.88;
  int fitted = 0;
  for (int64_t free = 15 * kGigabyte; free < 22 * kGigabyte; free += kGigabyte / 20)
    for (const int32_t tokens : {0, 100'000}) {
      MemoryDemand before = demand(tokens);
      before.weights = 16 * kGigabyte;
      const GpuFit fit = fit_on_gpu(before, {free, free, kFraction});
      if (!fit.fits()) continue;
      ++fitted;
      const GpuMemory after{free - before.weights - 400'000'000, free, kFraction};  // with some that nobody counts
      EXPECT_GE(pool_tokens_on_gpu(demand(tokens), after), tokens > 0 ? tokens : 4096) << free;
    }
  EXPECT_GT(fitted, 50);
}

// Who names the tokens may have what the fraction would leave, but for what a step takes.
TEST(PoolMemory, OnAGpuMayBeMoreThanTheFractionWhereItIsNamed) {
  const auto fits = [](int32_t tokens) {
    return fit_on_gpu(demand(tokens), {100 * kGigabyte, 100 * kGigabyte, 0.5}).fits();
  };
  EXPECT_TRUE(fits(static_cast<int32_t>(98 * kGigabyte / kTokenBytes)));
  EXPECT_FALSE(fits(static_cast<int32_t>(99 * kGigabyte / kTokenBytes)));
}

TEST(PoolMemory, WhatCannotFitIsRefusedWithWhatWould) {
  expect_refused([] { check_pool_fits(kTokenBytes, 1 << 30, 8 * kGigabyte); },
                 "the keys and values of 1073741824 tokens take 24.7 TB, and 8.0 GB of memory are free, enough for "
                 "347222 tokens (--max-total-tokens)");
  check_pool_fits(kTokenBytes, 1000, 1000 * kTokenBytes);
  check_pool_fits(kTokenBytes, 1 << 30, std::nullopt);  // nobody knows
}

TEST(PoolMemory, WhatCannotFitOnAGpuIsOutOfMemoryAndSaysWhatToDo) {
  const auto refusal = [](int32_t tokens, const GpuMemory& memory) -> std::string {
    try {
      pool_tokens_on_gpu(demand(tokens), memory);
    } catch (const cuda::OutOfMemory& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(refusal(300'000, {2 * kGigabyte, 10 * kGigabyte, 0.9}),
            "the keys and values of 300000 tokens take 6.9 GB, and the GPU has 1.0 GB for them: lower "
            "--max-total-tokens");
  EXPECT_EQ(refusal(0, {kGigabyte / 20, 10 * kGigabyte, 0.9999}),
            "the keys and values of 4096 tokens take 95 MB, and the GPU has 49 MB for them: raise "
            "--mem-fraction-static, or ask for fewer with --max-total-tokens");
}

TEST(PoolMemory, IsTightWhereLittleIsLeft) {
  EXPECT_EQ(tight_memory(kTokenBytes, 300'000, 8 * kGigabyte),
            "memory is tight: the keys and values of 300000 tokens take 6.9 GB, and 8.0 GB are free");
  EXPECT_EQ(tight_memory(kTokenBytes, 200'000, 8 * kGigabyte), std::nullopt);
  EXPECT_EQ(tight_memory(kTokenBytes, 300'000, std::nullopt), std::nullopt);
}

}  // namespace
}  // namespace quire::engine
