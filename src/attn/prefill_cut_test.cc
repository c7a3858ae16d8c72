#include "attn/prefill_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quire::attn::cuda {
namespace {

constexpr int32_t kPrefillSlots = 256;  // of tiles of 128 rows

struct TilesAlike {
  int32_t count, steps;  // of each
};

struct PrefillCut {
  int32_t share, longest, slots;  // steps of the longest split; splits of tiles that have several
};
PrefillCut cut_of(const std::vector<TilesAlike>& all) {
  int64_t steps = 0;
  for (const TilesAlike& tiles : all) steps += int64_t{tiles.count} * tiles.steps;
  PrefillCut made{share_of(steps, kPrefillSlots), 0, 0};
  for (const TilesAlike& tiles : all) {
    const int32_t splits = splits_of(tiles.steps, made.share);
    made.longest = std::max(made.longest, (tiles.steps + splits - 1) / splits);
    if (splits > 1) made.slots += tiles.count * splits;
  }
  return made;
}

TEST(PrefillCut, SplitsHaveRoom) {
  for (const int32_t few : {1, 3, 8, 31, 64, 65, 127, 128, 200, 255})
    for (const int32_t steps : {1, 8, 9, 16, 100, 257, 1024, 8192})
      for (const int32_t many : {0, 1, 100, 2000})
        EXPECT_LE(cut_of({{few, steps}, {many, 16}}).slots, kPrefillSlots) << few << " of " << steps << ", " << many;
}

// A few new tokens after a long prefix: of one sequence with 8 kv heads, of 8; 128 keys a step.
TEST(PrefillCut, FewLongTilesFillTheMachine) {
  EXPECT_EQ(splits_of(256, share_of(8 * 256, kPrefillSlots)), 16);
  EXPECT_EQ(splits_of(256, share_of(64 * 256, kPrefillSlots)), 2);
  EXPECT_EQ(splits_of(1024, share_of(8 * 1024, kPrefillSlots)), 16);
}

TEST(PrefillCut, OneLongTileAmongManyIsSplit) {
  const PrefillCut made = cut_of({{8, 1024}, {512, 16}});
  EXPECT_LE(made.longest, 128);
  EXPECT_EQ(splits_of(16, made.share), 1);
}

TEST(PrefillCut, PromptsAndShortTilesAreWhole) {
  EXPECT_EQ(cut_of({{512, 16}}).slots, 0);
  EXPECT_EQ(cut_of({{8, 8}}).slots, 0) << "a merge would take longer";
  EXPECT_EQ(splits_of(0, 8), 1);
}

TEST(PrefillCut, SplitsAreNoMoreThanTheyAreLong) {
  for (const int32_t steps : {9, 16, 100, 512, 8192}) {
    const int32_t splits = splits_of(steps, 8);
    EXPECT_GE(splits, 2);
    EXPECT_LE(splits * splits, steps);
  }
}

TEST(PrefillCut, SplitsBeforeAreCountedTogether) {
  SplitsBefore sum{SplitsBefore::of(5, 1).both + SplitsBefore::of(2, 16).both + SplitsBefore::of(4000, 1).both};
  EXPECT_EQ(sum.all(), 4037);
  EXPECT_EQ(sum.of_several(), 32);
}

}  // namespace
}  // namespace quire::attn::cuda
