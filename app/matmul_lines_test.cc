#include "matmul_lines.h"

#include <gtest/gtest.h>

#include <set>

#include "base/check.h"

namespace quire::bench {
namespace {

constexpr Isa kProductIsas[] = {Isa::avx2, Isa::avxvnni, Isa::avx512vnni, Isa::amx};

TEST(MatmulLines, NamesSayWhatIsMultiplied) {
  MatmulLine line{
      .matrix = {.name = "qkv", .type = BlockType::q4_1, .inputs = 576, .outputs = 960}, .rows = 8, .isa = Isa::amx};
  EXPECT_EQ(name(line, Isa::amx), "matmul/qkv/576x960/type=Q4_1/rows=8");
  line.cold = true;
  EXPECT_EQ(name(line, Isa::amx), "matmul/qkv/576x960/type=Q4_1/rows=8/cold");
  EXPECT_EQ(name(line, Isa::avx2), "matmul/qkv/576x960/type=Q4_1/rows=8/cold/isa=amx");
}

TEST(MatmulLines, NoTwoLinesShareAName) {
  std::set<std::string> names;
  for (const auto& group : matmul_groups(kProductIsas, false))
    for (const MatmulLine& line : group) EXPECT_TRUE(names.insert(name(line, Isa::amx)).second) << name(line, Isa::amx);
}

TEST(MatmulLines, EveryQuantisedTypeHasFewAndManyRowsOnEveryInstructionSet) {
  std::set<std::tuple<BlockType, int32_t, Isa>> seen;
  for (const auto& group : matmul_groups(kProductIsas, false))
    for (const MatmulLine& line : group) seen.insert({line.matrix.type, line.rows, line.isa});
  for (const BlockType type : kBlockTypes)
    for (const int32_t rows : {1, 2, 4, 8, 16, 512})
      for (const Isa isa : kProductIsas)
        EXPECT_EQ(seen.contains({type, rows, isa}), shape_of(type).elements > 1)
            << to_string(type) << " x " << rows << " on " << to_string(isa);
}

TEST(MatmulLines, OfInstructionSetsThoseWithProductsOfTheirOwnCount) {
  const Isa all[] = {Isa::plain, Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16, Isa::amx};
  EXPECT_EQ(product_isas(all), std::vector<Isa>(std::begin(kProductIsas), std::end(kProductIsas)));
}

TEST(MatmulLines, GateAndUpGiveHalfAsManyResultsAsOutputs) {
  const Work work =
      work_of({.matrix = {.name = "x", .type = BlockType::q4_1, .inputs = 32, .outputs = 64, .gate_and_up = true},
               .rows = 2,
               .isa = Isa::avx2});
  EXPECT_DOUBLE_EQ(work.bytes, 64 * 20 + 2 * (32 + 32 * 4));
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * 2 * 32 * 64);
}

TEST(MatmulLines, OnlyColdLinesAreBoundByReading) {
  MatmulLine line{.matrix = {.name = "x", .type = BlockType::q8_0, .inputs = 1024, .outputs = 1024}, .isa = Isa::avx2};
  const MachineLimits limits{"a CPU", 2, Isa::avx2, 1e9, {{Isa::avx2, 100e9}}};
  EXPECT_DOUBLE_EQ(limit_seconds(line, limits), 2.0 * 1024 * 1024 / 100e9);
  line.cold = true;
  EXPECT_DOUBLE_EQ(limit_seconds(line, limits), work_of(line).bytes / 1e9);
  line.isa = Isa::amx;
  EXPECT_THROW(limit_seconds(line, limits), CheckError);
}

}  // namespace
}  // namespace quire::bench
