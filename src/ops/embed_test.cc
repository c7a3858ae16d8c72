#include "ops/embed.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/testing/expect_refused.h"
#include "ops/testing_machines.h"

namespace quire::ops {
namespace {

using namespace testing;

class Embed : public OnEachMachine {};
class GatherRows : public OnEachMachine {};
INSTANTIATE_TEST_SUITE_P(Machines, Embed, kMachines, machine_name);
INSTANTIATE_TEST_SUITE_P(Machines, GatherRows, kMachines, machine_name);

// Blocks of any bits, except that 16-bit words keep small exponents, so that every scale and number is finite.
Array<std::byte> random_blocks(BlockType type, int64_t elements) {
  std::mt19937_64 random(1);
  Array<std::byte> blocks(static_cast<size_t>(bytes_of(type, elements)));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() & 0x3b);
  return blocks;
}

TEST_P(Embed, IsTheTablesRowsForEveryType) {
  constexpr int64_t kDim = 256, kVocabulary = 40;
  with_every_exec([](Exec& exec) {
    for (const BlockType type : kBlockTypes)
      for (const int32_t rows : kRowCounts) {
        const Array<std::byte> blocks = random_blocks(type, kDim * kVocabulary);
        Array<int32_t> ids(rows + 1);
        const Array<int32_t> live = {rows};
        for (int32_t row = 0; row < rows; ++row) ids[row] = (row * 7 + 39) % kVocabulary;
        Array<float> out((rows + 1) * kDim, -1.0f), expected(out);
        embed({.table = {type, blocks.data(), kVocabulary, kDim},
               .ids = ids.data(),
               .out = {out.data(), rows + 1, kDim, kDim},
               .live_rows = live.data()},
              exec);
        exec.wait();
        for (int32_t row = 0; row < rows; ++row)
          dequantise(type, blocks.data() + ids[row] * bytes_of(type, kDim), {expected.data() + row * kDim, kDim});
        ASSERT_TRUE(same_bits(out, expected)) << to_string(type) << " " << rows;
      }
  });
}

TEST_P(Embed, MayScaleWhatItReads) {
  const Array<float> table = random_array(4 * 48, 1);
  const Array<int32_t> ids = {3, 1}, live = {2};
  Array<float> out(2 * 48);
  embed({.table = {BlockType::f32, reinterpret_cast<const std::byte*>(table.data()), 4, 48},
         .ids = ids.data(),
         .out = {out.data(), 2, 48, 48},
         .scale = 12,
         .live_rows = live.data()},
        any_exec());
  any_exec().wait();
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(out[i], table[3 * 48 + i] * 12);
    EXPECT_EQ(out[48 + i], table[48 + i] * 12);
  }
}

TEST_P(Embed, ReadsIdsAndLiveRowsWhenItRuns) {
  const Array<float> table = random_array(10 * 48, 1);
  Array<int32_t> ids = {1, 2, 3}, live = {0};
  Array<float> out(3 * 48, -1.0f);
  Recording recording(any_exec(), [&] {
    embed({{BlockType::f32, reinterpret_cast<const std::byte*>(table.data()), 10, 48},
           ids.data(),
           {out.data(), 3, 48, 48},
           1,
           live.data()},
          any_exec());
  });
  std::copy_n(std::array{9, 0, 5}.begin(), 3, ids.begin());
  live[0] = 2;
  recording.replay();
  EXPECT_EQ(std::memcmp(out.data(), table.data() + 9 * 48, 48 * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(out.data() + 48, table.data(), 48 * sizeof(float)), 0);
  EXPECT_EQ(out[2 * 48], -1.0f);
  ids[1] = 10;
  if (is_gpu()) return;  // which cannot refuse then: see below
  expect_refused([&] { recording.replay(); }, "index 10 (row 1), outside 10");
  live[0] = 4;
  expect_refused([&] { recording.replay(); }, "4 live rows in room for 3");
}

// Rows that a sampler will not draw from, and nothing outside the table is read.
TEST_P(Embed, RowsOfIdsOutsideTheTableAreNanOnAGpu) {
  if (!is_gpu()) GTEST_SKIP() << "a CPU refuses such ids";
  for (const BlockType type : kBlockTypes) {
    constexpr int64_t kDim = 256;
    const Array<std::byte> blocks = random_blocks(type, kDim * 4);
    const Array<int32_t> ids = {-1, 3, 4, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
    const Array<int32_t> live = {9};  // more than there is room for
    Array<float> out(6 * kDim, -1.0f);
    embed({{type, blocks.data(), 4, kDim}, ids.data(), {out.data(), 5, kDim, kDim}, 1, live.data()}, gpu());
    gpu().wait();
    for (int64_t row = 0; row < 5; ++row)
      EXPECT_EQ(std::count_if(&out[row * kDim], &out[row * kDim] + kDim, [](float x) { return x != x; }),
                row == 1 ? 0 : kDim);
    EXPECT_EQ(std::count(&out[5 * kDim], &out[5 * kDim] + kDim, -1.0f), kDim) << "behind the room";
  }
}

// What embed reads in fours elsewhere: tables of odd widths at odd addresses, with every kind of number.
TEST_P(Embed, AnyWidthStrideAndNumber) {
  with_every_exec([](Exec& exec) {
    for (const int64_t dim : {1, 3, 45, 1025, 2050}) {
      Array<float> table = random_array(static_cast<size_t>(3 * dim + 1), 1);
      for (size_t i = 1; i < table.size(); i += 7)
        table[i] = std::array{-0.0f, 1e-45f, -1e-40f, kInfinity, -kInfinity, std::nanf("")}[i % 6];
      const Array<int32_t> ids = {2, 0}, live = {2};
      Array<float> out(3 * (dim + 3), -1.0f), expected(out);
      const auto* blocks = reinterpret_cast<const std::byte*>(table.data() + 1);
      embed({{BlockType::f32, blocks, 3, dim}, ids.data(), {out.data() + 1, 2, dim, dim + 2}, 1, live.data()}, exec);
      exec.wait();
      for (int64_t row = 0; row < 2; ++row)
        std::copy_n(&table[1 + ids[row] * dim], dim, &expected[1 + row * (dim + 2)]);
      ASSERT_TRUE(same_bits(out, expected)) << dim;
    }
  });
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

TEST_P(GatherRows, CopiesTheRowsAskedFor) {
  with_every_exec([](Exec& exec) {
    const Array<float> in = random_array(20 * 51, 1);
    for (const int32_t rows : kRowCounts) {
      Array<int32_t> index(rows + 1);
      const Array<int32_t> live = {rows};
      for (int32_t row = 0; row < rows; ++row) index[row] = (row * 13 + 19) % 20;
      Array<float> out((rows + 1) * 60, -1.0f), expected(out);
      gather_rows({.in = {in.data(), 20, 50, 51},
                   .index = index.data(),
                   .out = {out.data(), rows + 1, 50, 60},
                   .live_rows = live.data()},
                  exec);
      exec.wait();
      for (int32_t row = 0; row < rows; ++row)
        std::copy_n(in.begin() + index[row] * 51, 50, expected.begin() + row * 60);
      ASSERT_EQ(out, expected) << rows;
    }
  });
}

TEST_P(GatherRows, ReadsIndicesAndLiveRowsWhenItRuns) {
  const Array<float> in = random_array(4 * 8, 1);
  Array<int32_t> index = {99, 99}, live = {2};
  Array<float> out(2 * 8, -1.0f);
  Recording recording(any_exec(), [&] {
    gather_rows({{in.data(), 4, 8, 8}, index.data(), {out.data(), 2, 8, 8}, live.data()}, any_exec());
  });
  index[0] = 3;
  live[0] = 1;
  recording.replay();
  EXPECT_TRUE(std::equal(out.begin(), out.begin() + 8, in.begin() + 3 * 8));
  EXPECT_EQ(out[8], -1.0f);
  if (!is_gpu()) return;
  live[0] = 2;  // index 99
  recording.replay();
  EXPECT_EQ(std::count_if(out.begin() + 8, out.end(), [](float x) { return x != x; }), 8);
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
