#include "attn/cpu_choice.h"

#include <gtest/gtest.h>

namespace quire::attn {
namespace {

constexpr Problem kUsual{
    .query_type = Dtype::bf16, .kv_type = Dtype::bf16, .heads = 32, .kv_heads = 8, .key_dim = 128, .value_dim = 128};

Problem changed(void (*change)(Problem&)) {
  Problem problem = kUsual;
  change(problem);
  return problem;
}

TEST(Choose, TakesTheMachinesBestForBf16) {
  for (Isa isa : {Isa::plain, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx})
    EXPECT_EQ(choose(kUsual, isa).isa, isa);
  EXPECT_EQ(choose(kUsual, Isa::avxvnni).isa, Isa::avx2);
  EXPECT_EQ(choose(kUsual, Isa::avx512vnni).isa, Isa::avx512);
}

TEST(Choose, DoesNotRoundWhatIsNotBf16) {
  const Problem others[] = {
      changed([](Problem& p) { p.query_type = Dtype::f32; }), changed([](Problem& p) { p.kv_type = Dtype::f16; }),
      changed([](Problem& p) { p.kv_type = Dtype::f8e4m3; }), changed([](Problem& p) { p.key_dim = 80; }),
      changed([](Problem& p) { p.value_dim = 112; }),
  };
  for (const Problem& problem : others) {
    EXPECT_EQ(choose(problem, Isa::amx).isa, Isa::avx512) << to_string(problem);
    EXPECT_EQ(choose(problem, Isa::avx512bf16).isa, Isa::avx512) << to_string(problem);
    EXPECT_EQ(choose(problem, Isa::avx2).isa, Isa::avx2) << to_string(problem);
  }
}

TEST(Choose, CutsTilesToTheirRows) {
  EXPECT_EQ(to_string(choose(kUsual, Isa::avx2)), "isa avx2, 64 positions a tile, 4 heads together");
  EXPECT_EQ(choose(changed([](Problem& p) { p.heads = 8; }), Isa::avx2).positions, 256);
  EXPECT_EQ(choose(changed([](Problem& p) { p.key_dim = p.value_dim = 256; }), Isa::avx2).positions, 32);
  const Choice latent = choose({.query_type = Dtype::bf16,
                                .kv_type = Dtype::bf16,
                                .heads = 128,
                                .kv_heads = 1,
                                .key_dim = 576,
                                .value_dim = 512},
                               Isa::avx2);
  EXPECT_EQ(latent.positions, 1);
  EXPECT_EQ(latent.head_chunk, 32);
}

TEST(Choose, RefusesWithTheWholeProblem) {
  const auto refusal = [](const Problem& problem) -> std::string {
    try {
      choose(problem, Isa::avx512);
    } catch (const CheckError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(changed([](Problem& p) { p.key_dim = 100; })).find("key dim 100"), std::string::npos);
  EXPECT_NE(refusal(changed([](Problem& p) { p.heads = 33; })).find("33 heads, 8 kv heads"), std::string::npos);
  EXPECT_NE(refusal(changed([](Problem& p) { p.query_type = Dtype::f8e4m3; })).find("f8e4m3 queries"),
            std::string::npos);
}

TEST(Split, OnlyTilesAboveAQuarterOfAThreadsShare) {
  EXPECT_TRUE(split_tile(4096, 4096, 2));             // alone
  EXPECT_FALSE(split_tile(4096, 8 * 4096, 2));        // one of eight alike: each thread has four
  EXPECT_TRUE(split_tile(4097, 8 * 4096, 2));         // just more than that
  EXPECT_TRUE(split_tile(32768, 32768 + 7 * 64, 2));  // long among short ones
  EXPECT_FALSE(split_tile(4096, 4096, 1));            // nobody to share with
  EXPECT_FALSE(split_tile(512, 512, 8));              // one range
}

TEST(Split, RangesAreAnchoredAtZero) {
  EXPECT_EQ(ranges_of(0, 0), 0);
  EXPECT_EQ(ranges_of(0, 512), 1);
  EXPECT_EQ(ranges_of(0, 513), 2);
  EXPECT_EQ(ranges_of(511, 513), 2);
  EXPECT_EQ(ranges_of(512, 1024), 1);
}

}  // namespace
}  // namespace quire::attn
