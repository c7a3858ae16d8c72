#include "matmul_lines.h"

#include <gtest/gtest.h>

#include <set>

namespace quire::bench {
namespace {

TEST(MatmulLines, NamesSayWhatIsMultiplied) {
  MatmulLine line{.matrix = "qkv", .type = BlockType::q4_1, .inputs = 576, .outputs = 960, .rows = 8};
  EXPECT_EQ(name(line), "matmul/qkv/576x960/type=Q4_1/rows=8");
  line.cold = true;
  EXPECT_EQ(name(line), "matmul/qkv/576x960/type=Q4_1/rows=8/cold");
}

TEST(MatmulLines, NoTwoLinesShareAName) {
  std::set<std::string> names;
  for (const MatmulLine& line : matmul_lines(false)) EXPECT_TRUE(names.insert(name(line)).second) << name(line);
}

TEST(MatmulLines, GateAndUpGiveHalfAsManyResultsAsOutputs) {
  const Work work =
      work_of({.matrix = "x", .type = BlockType::q4_1, .inputs = 32, .outputs = 64, .gate_and_up = true, .rows = 2});
  EXPECT_DOUBLE_EQ(work.bytes, 64 * 20 + 2 * (32 + 32 * 4));
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * 2 * 32 * 64);
}

}  // namespace
}  // namespace quire::bench
