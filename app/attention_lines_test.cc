#include "attention_lines.h"

#include <gtest/gtest.h>

#include <set>

#include "tree.h"

namespace quire::bench {
namespace {

constexpr Isa kIsas[] = {Isa::plain, Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16, Isa::amx};

TEST(AttentionLines, NamesShowWhatIsAwayFromTheDefault) {
  AttentionLine line{.kind = Kind::decode, .batch = 8, .tokens = 4096, .isa = Isa::amx};
  EXPECT_EQ(name(line, Isa::amx), "decode/batch=8/keys=4096/page=16");
  line.heads = {9, 3, 64};
  line.type = Dtype::f16;
  line.isa = Isa::avx512;
  EXPECT_EQ(name(line, Isa::amx), "decode/batch=8/keys=4096/page=16/heads=9x3x64/type=f16/isa=avx512");
  EXPECT_EQ(name({.kind = Kind::prefill, .batch = 1, .tokens = 2048, .isa = Isa::avx2}, Isa::avx2),
            "prefill/tokens=2048/batch=1/page=16");
  EXPECT_EQ(name({.kind = Kind::verify_tree, .batch = 8, .tokens = 4096, .nodes = 8, .isa = Isa::avx2}, Isa::avx2),
            "verify_tree/batch=8/nodes=8/keys=4096/page=16");
}

TEST(AttentionLines, NoTwoLinesShareAName) {
  std::set<std::string> names;
  for (const LineGroup& group : attention_groups(kIsas, false))
    for (const AttentionLine& line : group)
      EXPECT_TRUE(names.insert(name(line, Isa::amx)).second) << name(line, Isa::amx);
}

TEST(AttentionLines, CausalWorkIsHalfOfTheSquare) {
  const Work work = work_of({.kind = Kind::prefill, .batch = 1, .tokens = 512, .isa = Isa::avx2});
  EXPECT_DOUBLE_EQ(work.flops, 4.0 * 512 * 512 / 2 * 32 * 128);
  EXPECT_DOUBLE_EQ(work.bytes, 2.0 * 512 * (2 * 8 * 128 + 2 * 32 * 128));
}

TEST(AttentionLines, NamesOfWhatOnlyAGpuMeasures) {
  AttentionLine line{.kind = Kind::decode, .batch = 32, .tokens = 1024, .longest = 65536, .isa = Isa::plain};
  EXPECT_EQ(name(line, Isa::plain), "decode/batch=32/keys=1024/longest=65536/page=16");
  line.longest = 0;
  line.type = Dtype::f8e4m3;
  EXPECT_EQ(name(line, Isa::plain), "decode/batch=32/keys=1024/page=16/type=f8e4m3");
  line.type = Dtype::bf16;
  line.heads = {128, 1, 576, 512, true};
  EXPECT_EQ(name(line, Isa::plain), "decode/batch=32/keys=1024/page=16/heads=128x1x576v512/latent");
  line = {.kind = Kind::prefill, .batch = 1, .tokens = 32768, .fresh = 64, .deterministic = true, .isa = Isa::plain};
  EXPECT_EQ(name(line, Isa::plain), "prefill/tokens=32768/batch=1/fresh=64/page=16/deterministic");
}

TEST(AttentionLines, NewTokensAfterAPrefixSeeAllOfIt) {
  const AttentionLine line{.kind = Kind::prefill, .batch = 2, .tokens = 1000, .fresh = 10, .isa = Isa::plain};
  EXPECT_EQ(line.rows(), 20);
  EXPECT_DOUBLE_EQ(work_of(line).flops, 4.0 * 2 * 10 * (1000 - 5) * 32 * 128);
}

TEST(AttentionLines, ADeterministicLineIsHeldAgainstTheDefault) {
  AttentionLine line{.kind = Kind::decode, .batch = 8, .tokens = 100, .isa = Isa::plain};
  std::vector<Timing> timings = {{line, 2e-6}};
  line.deterministic = true;
  timings.push_back({line, 3e-6});
  EXPECT_EQ(note_of(timings[1], timings), "1.50 x the default");
  EXPECT_EQ(note_of(timings[0], timings), "");
}

TEST(AttentionLines, TheLinesOfAGpuHaveNamesOfTheirOwn) {
  const LineGroup lines = gpu_attention_lines(false);
  std::set<std::string> names;
  for (const AttentionLine& line : lines) EXPECT_TRUE(names.insert(name(line, Isa::plain)).second);
  for (const char* wanted :
       {"prefill/tokens=16384/batch=1/page=128", "prefill/tokens=16384/batch=1/page=16/heads=9x3x64",
        "prefill/tokens=8192/batch=2/page=64/heads=32x8x192v128", "decode/batch=16/keys=32768/page=64/type=f8e4m3",
        "prefill/tokens=512/batch=16/page=16/type=f8e4m3", "verify_tree/batch=32/nodes=8/keys=4096/page=1",
        "decode/batch=64/keys=4096/page=1/heads=128x1x576v512/latent",
        "decode/batch=32/keys=1024/longest=65536/page=16", "decode/batch=128/keys=4096/page=16/deterministic",
        "verify_tree/batch=32/nodes=64/keys=4096/page=16", "prefill/tokens=32768/batch=1/fresh=64/page=16",
        "prefill/tokens=2048/batch=8/page=64/heads=128x1x576v512/latent",
        "decode/batch=64/keys=4096/page=64/heads=128x1x576v512/latent/type=f8e4m3",
        "verify_tree/batch=32/nodes=8/keys=4096/page=64/heads=16x1x576v512/latent",
        "prefill/tokens=8192/batch=2/page=64/heads=32x8x192v128/type=f8e4m3"})
    EXPECT_TRUE(names.contains(wanted)) << wanted;
}

TEST(AttentionLines, NarrowKeysAreOneByteAndQueriesTwo) {
  const Work work =
      work_of({.kind = Kind::decode, .batch = 4, .tokens = 100, .type = Dtype::f8e4m3, .isa = Isa::plain});
  EXPECT_DOUBLE_EQ(work.bytes, 4.0 * (100 * 2 * 8 * 128 + 2 * 32 * 128 * 2));
  EXPECT_DOUBLE_EQ(work.flops, 4.0 * 400 * 32 * 128);
}

TEST(AttentionLines, ALatentRowIsReadOnce) {
  const Heads latent{128, 1, 576, 512, true};
  const Work work = work_of({.kind = Kind::decode, .batch = 2, .tokens = 100, .heads = latent, .isa = Isa::plain});
  EXPECT_DOUBLE_EQ(work.bytes, 2.0 * 2 * (100 * 576 + 128 * (576 + 512)));
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * (576 + 512) * 128 * 200);
}

TEST(AttentionLines, OneLongRequestAmongShortOnes) {
  const AttentionLine line{.kind = Kind::decode, .batch = 32, .tokens = 1024, .longest = 65536, .isa = Isa::plain};
  EXPECT_EQ(line.tokens_of(0), 65536);
  EXPECT_EQ(line.tokens_of(31), 1024);
  EXPECT_DOUBLE_EQ(work_of(line).flops, 4.0 * (65536 + 31 * 1024) * 32 * 128);
}

TEST(AttentionLines, AVerificationBringsItsDecodeAlong) {
  const auto groups = filtered(attention_groups(kIsas, true), "verify_tree", Isa::amx);
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].size(), 2 * std::size(kIsas));
  for (const AttentionLine& line : groups[0]) {
    EXPECT_EQ(line.page, 16);
    EXPECT_EQ(line.type, Dtype::bf16);
  }
}

TEST(AttentionLines, AFilterThatNothingMatchesLeavesNothing) {
  EXPECT_TRUE(filtered(attention_groups(kIsas, false), "no such line", Isa::amx).empty());
}

TEST(Tree, NodesSeeThemselvesAndTheirAncestors) {
  uint8_t mask[16];
  fill_tree_mask(mask, 4);
  const uint8_t expected[16] = {1, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1};
  EXPECT_TRUE(std::equal(mask, mask + 16, expected));
  EXPECT_EQ(visible_pairs(4), 8);
}

}  // namespace
}  // namespace quire::bench
