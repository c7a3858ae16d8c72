#include "ops/embed.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/graph.h"
#include "base/testing/expect_refused.h"
#include "ops/testing_rows.h"

namespace quire::ops {
namespace {

using namespace testing;

// Blocks of any bits, except that 16-bit words keep small exponents, so that every scale and number is finite.
std::vector<std::byte> random_blocks(BlockType type, int64_t elements) {
  std::mt19937_64 random(1);
  std::vector<std::byte> blocks(static_cast<size_t>(bytes_of(type, elements)));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() & 0x3b);
  return blocks;
}

TEST(Embed, IsTheTablesRowsForEveryType) {
  constexpr int64_t kDim = 256, kVocabulary = 40;
  with_every_exec([](Exec& exec) {
    for (const BlockType type : kBlockTypes)
      for (const int32_t rows : kRowCounts) {
        const std::vector<std::byte> blocks = random_blocks(type, kDim * kVocabulary);
        std::vector<int32_t> ids(rows);
        for (int32_t row = 0; row < rows; ++row) ids[row] = (row * 7 + 39) % kVocabulary;
        std::vector<float> out((rows + 1) * kDim, -1.0f), expected(out);
        embed({.table = {type, blocks.data(), kVocabulary, kDim},
               .ids = ids.empty() ? &rows : ids.data(),
               .out = {out.data(), rows + 1, kDim, kDim},
               .live_rows = &rows},
              exec);
        for (int32_t row = 0; row < rows; ++row)
          dequantise(type, blocks.data() + ids[row] * bytes_of(type, kDim), {expected.data() + row * kDim, kDim});
        ASSERT_TRUE(same_bits(out, expected)) << to_string(type) << " " << rows;
      }
  });
}

TEST(Embed, MayScaleWhatItReads) {
  Exec exec(ExecOptions{.threads = 1});
  const std::vector<float> table = random_floats(4 * 48, 1);
  const std::vector<int32_t> ids = {3, 1};
  std::vector<float> out(2 * 48);
  const int32_t live = 2;
  embed({.table = {BlockType::f32, reinterpret_cast<const std::byte*>(table.data()), 4, 48},
         .ids = ids.data(),
         .out = {out.data(), 2, 48, 48},
         .scale = 12,
         .live_rows = &live},
        exec);
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(out[i], table[3 * 48 + i] * 12);
    EXPECT_EQ(out[48 + i], table[48 + i] * 12);
  }
}

TEST(Embed, ReadsIdsAndLiveRowsWhenItRuns) {
  Exec exec(ExecOptions{.threads = 2});
  const std::vector<float> table = random_floats(10 * 48, 1);
  std::vector<int32_t> ids = {1, 2, 3};
  std::vector<float> out(3 * 48, -1.0f);
  int32_t live = 0;
  Graph graph;
  exec.begin_capture(graph);
  embed({{BlockType::f32, reinterpret_cast<const std::byte*>(table.data()), 10, 48},
         ids.data(),
         {out.data(), 3, 48, 48},
         1,
         &live},
        exec);
  exec.end_capture();
  ids = {9, 0, 5};
  live = 2;
  graph.replay(exec);
  EXPECT_EQ(std::memcmp(out.data(), table.data() + 9 * 48, 48 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(out.data() + 48, table.data(), 48 * sizeof(float)), 0);
  EXPECT_EQ(out[2 * 48], -1.0f);
  ids[1] = 10;
  expect_refused([&] { graph.replay(exec); }, "index 10 (row 1), outside 10");
  live = 4;
  expect_refused([&] { graph.replay(exec); }, "4 live rows in room for 3");
}

TEST(Embed, RefusesAtTheDoor) {
  Exec exec(ExecOptions{.threads = 1});
  const std::vector<float> table(10 * 32);
  std::vector<float> out(2 * 32);
  std::vector<int32_t> ids = {3, 10};
  int32_t live = 2;
  EmbedArgs args{{BlockType::f32, reinterpret_cast<const std::byte*>(table.data()), 10, 32},
                 ids.data(),
                 {out.data(), 2, 32, 32},
                 1,
                 &live};
  expect_refused([&] { embed(args, exec); }, "index 10 (row 1), outside 10");
  ids[1] = -1;
  expect_refused([&] { embed(args, exec); }, "index -1");
  ids[1] = 0;
  args.table.inputs = 16;
  expect_refused([&] { embed(args, exec); }, "from rows of 16 to rows of 32");
  args.table.inputs = 32;
  live = 3;
  expect_refused([&] { embed(args, exec); }, "3 live rows in room for 2");
}

TEST(GatherRows, CopiesTheRowsAskedFor) {
  with_every_exec([](Exec& exec) {
    const std::vector<float> in = random_floats(20 * 51, 1);
    for (const int32_t rows : kRowCounts) {
      std::vector<int32_t> index(rows + 1);
      for (int32_t row = 0; row < rows; ++row) index[row] = (row * 13 + 19) % 20;
      std::vector<float> out((rows + 1) * 60, -1.0f), expected(out);
      gather_rows({.in = {in.data(), 20, 50, 51},
                   .index = index.data(),
                   .out = {out.data(), rows + 1, 50, 60},
                   .live_rows = &rows},
                  exec);
      for (int32_t row = 0; row < rows; ++row)
        std::copy_n(in.begin() + index[row] * 51, 50, expected.begin() + row * 60);
      ASSERT_EQ(out, expected) << rows;
    }
  });
}

TEST(GatherRows, ReadsIndicesAndLiveRowsWhenItRuns) {
  Exec exec(ExecOptions{.threads = 2});
  const std::vector<float> in = random_floats(4 * 8, 1);
  std::vector<int32_t> index = {99, 99};
  std::vector<float> out(2 * 8, -1.0f);
  int32_t live = 2;
  Graph graph;
  exec.begin_capture(graph);
  gather_rows({{in.data(), 4, 8, 8}, index.data(), {out.data(), 2, 8, 8}, &live}, exec);
  exec.end_capture();
  index = {3, 99};
  live = 1;
  graph.replay(exec);
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 8, in.begin() + 3 * 8));
  EXPECT_EQ(out[8], -1.0f);
}

TEST(GatherRows, RefusesAtTheDoor) {
  Exec exec(ExecOptions{.threads = 1});
  const std::vector<float> in(4 * 8);
  std::vector<float> out(2 * 8);
  std::vector<int32_t> index = {0, 4};
  int32_t live = 2;
  GatherArgs args{{in.data(), 4, 8, 8}, index.data(), {out.data(), 2, 8, 8}, &live};
  expect_refused([&] { gather_rows(args, exec); }, "index 4 (row 1), outside 4");
  args.out.dim = 7;
  expect_refused([&] { gather_rows(args, exec); }, "from rows of 8 to rows of 7");
  args.index = nullptr;
  args.out.dim = 8;
  expect_refused([&] { gather_rows(args, exec); }, "indices");
}

}  // namespace
}  // namespace quire::ops
