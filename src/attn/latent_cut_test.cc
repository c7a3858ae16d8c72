#include "attn/latent_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace quire::attn::cuda::latent {
namespace {

struct Walked {
  Cut cut;
  SequenceSize size;
};

std::vector<Walked> sequences() {
  std::vector<Walked> all;
  for (const int32_t heads : {1, 5, 16, 48, 128})
    for (const int32_t row_blocks : {1, 2})
      for (const int32_t window : {-1, 0, 100})
        for (const bool is_causal : {true, false})
          for (const int32_t queries : {1, 2, 20, 65, 300})
            for (const int32_t prefix : {0, 1, 63, 700, 40000})
              all.push_back({Cut::of(heads, row_blocks, false, window, is_causal), {queries, prefix + queries}});
  return all;
}

// Of the tile's rows, the last query's position, its own key included.
int32_t last_key(const Walked& w, int32_t tile) {
  const int32_t last_row = std::min((tile + 1) * w.cut.tile_rows, w.size.queries * w.cut.heads) - 1;
  return w.cut.is_causal ? w.size.length - w.size.queries + last_row / w.cut.heads + 1 : w.size.length;
}

TEST(LatentCut, EveryTileHasUnitsForItsKeysAndFewMore) {
  for (const Walked& w : sequences()) {
    const int32_t tiles = tiles_of(w.cut, w.size);
    ASSERT_EQ(units_before_tile(w.cut, w.size, 0), 0);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const Keys keys = keys_of_tile(w.cut, w.size, tile);
      ASSERT_EQ(keys.end, last_key(w, tile));
      const int32_t end = tile + 1 == tiles ? units_of(w.cut, w.size) : units_before_tile(w.cut, w.size, tile + 1);
      const int32_t over = end - units_before_tile(w.cut, w.size, tile) - keys.units();
      ASSERT_GE(over, 0) << "tile " << tile << " of " << tiles;
      const bool divides_tiles = w.cut.heads == 1 || w.cut.heads == 16;  // else there are more queries than one thinks
      ASSERT_LE(over, tile + 1 == tiles ? 0 : divides_tiles ? 2 : 2 + tile) << "tile " << tile << " of " << tiles;
    }
  }
}

TEST(LatentCut, UnitsAreFoundInTheirTiles) {
  for (const Walked& w : sequences()) {
    if (w.size.length > 1000) continue;
    for (int32_t unit = 0; unit < units_of(w.cut, w.size); ++unit) {
      const int32_t tile = tile_with(w.cut, w.size, unit);
      ASSERT_LE(units_before_tile(w.cut, w.size, tile), unit);
      ASSERT_TRUE(tile + 1 == tiles_of(w.cut, w.size) || units_before_tile(w.cut, w.size, tile + 1) > unit);
    }
  }
}

// Who has done with a tile's keys goes on where the next tile begins, also where the last query's rows lie in both.
TEST(LatentCut, BehindATilesUnitsComesTheNextTile) {
  std::vector<Walked> all = sequences();
  all.push_back({Cut::of(20, 2, false, -1, true), {7, 1216}});  // 128 + 12 rows; one unit between them has nothing
  all.push_back({Cut::of(256, 2, false, -1, true), {1, 1216}});
  int32_t gaps_in_a_query = 0;
  for (const Walked& w : all) {
    int32_t unit = 0;
    for (int32_t tile = 0; tile < tiles_of(w.cut, w.size); ++tile) {
      ASSERT_EQ(tile_with(w.cut, w.size, unit), tile);
      const int32_t end = unit + keys_of_tile(w.cut, w.size, tile).units();
      unit = units_through_tile(w.cut, w.size, tile);
      const bool shares_last_query = last_key(w, tile) == w.size.length && tile + 1 < tiles_of(w.cut, w.size);
      gaps_in_a_query += w.cut.is_causal && shares_last_query && unit > end;
    }
    ASSERT_EQ(unit, units_of(w.cut, w.size));
  }
  EXPECT_GE(gaps_in_a_query, 2);
}

// Places for the queries of a block of 64 rows, whichever it is; a window begins where the shortest branch's does.
TEST(LatentCut, BranchesLieBehindTheKeysInPages) {
  const auto keys = [](int32_t heads, int32_t window, const SequenceSize& size) {
    const Keys all = keys_of(Cut::of(heads, 2, false, window, false), size);
    return std::pair(all.first, all.end);
  };
  const auto tree = [](int32_t queries, int32_t length, int32_t longest, int32_t shortest) {
    return SequenceSize{queries, length, true, longest, shortest};
  };
  EXPECT_EQ(keys(128, -1, tree(9, 700, 5, 1)), std::pair(0, 705)) << "a block has rows of one query";
  EXPECT_EQ(keys(16, -1, tree(9, 700, 5, 1)), std::pair(0, 720)) << "of four";
  EXPECT_EQ(keys(16, -1, tree(3, 700, 5, 1)), std::pair(0, 715)) << "but of no more than there are";
  EXPECT_EQ(keys(100, -1, tree(9, 700, 5, 1)), std::pair(0, 710)) << "of two, where the heads of one end inside";
  EXPECT_EQ(keys(5, -1, tree(70, 0, 5, 1)), std::pair(0, 70)) << "of fourteen";
  EXPECT_EQ(keys(128, 100, tree(9, 700, 5, 1)), std::pair(600, 705));
  EXPECT_EQ(keys(128, 0, tree(9, 700, 5, 3)), std::pair(700, 705)) << "all of it in the branches";
  EXPECT_EQ(units_of(Cut::of(16, 2, true, -1, false), tree(9, 64, 1, 1)), 2);
  EXPECT_FALSE(tree(3, 0, 0, 0).has_keys());
  EXPECT_TRUE(tree(3, 0, 1, 0).has_keys());
  for (const int32_t heads : {1, 5, 16, 48, 100, 128, 200})  // by counting
    for (int32_t block = 0; block < 40; ++block) {
      const int32_t first = block * kLatentRows / heads, last = (block * kLatentRows + kLatentRows - 1) / heads;
      EXPECT_LE(last - first + 1, queries_of_rows(kLatentRows, heads)) << heads;
    }
}

TEST(LatentCut, SequencesWithoutQueriesOrKeysHaveNothing) {
  const Cut cut = Cut::of(16, 2, false, -1, true);
  EXPECT_EQ(units_of(cut, {0, 500}), 0);
  EXPECT_EQ(units_of(Cut::of(16, 2, false, -1, false), {20, 0}), 0);
}

// A line of so many sequences that are alike.
Line line_of(const Cut& cut, int32_t batch, const SequenceSize& size) {
  return {.units = batch * units_of(cut, size),
          .longest = keys_of(cut, size).units(),
          .has_many_tiles = tiles_of(cut, size) > 1};
}

constexpr int32_t kPairs = 66;  // of an H200's 132 multiprocessors

TEST(LatentCut, FewQueriesAfterLongPrefixesAreSplit) {
  for (const int32_t heads : {16, 128}) {
    const Cut cut = Cut::of(heads, 2, false, -1, true);
    for (const int32_t batch : {1, 8})
      for (const int32_t prefix : {2048, 32768, 131072}) {
        const Line line = line_of(cut, batch, {16, prefix + 16});
        EXPECT_FALSE(is_better_dealt(line, kPairs)) << heads << " " << batch << " " << prefix;
        const WorkPlan plan = plan_work(line, batch, kPairs, 64);
        EXPECT_EQ(plan.splits_each, 0) << "its tiles are several";
        EXPECT_GE(plan.count, prefix > 2048 ? 20 : 4) << "workers";
      }
  }
}

TEST(LatentCut, PromptsAndShortOnesAreDealt) {
  const Cut cut = Cut::of(128, 2, false, -1, true);
  EXPECT_TRUE(is_better_dealt(line_of(cut, 8, {2048, 2048}), kPairs));
  EXPECT_TRUE(is_better_dealt(line_of(cut, 1, {8192, 8192}), kPairs));
  EXPECT_TRUE(is_better_dealt(line_of(cut, 16, {512, 512}), kPairs));
  EXPECT_TRUE(is_better_dealt(line_of(cut, 1, {16, 500}), kPairs)) << "what is split must be merged";
}

// Among many short ones too, it would end long after them.
TEST(LatentCut, OneLongSequenceIsSplit) {
  const Cut cut = Cut::of(16, 2, false, -1, true);
  Line line = line_of(cut, 1, {2048, 2048});
  const Line longest = line_of(cut, 1, {1, 131072});
  line = {line.units + longest.units, longest.longest, true};
  EXPECT_FALSE(is_better_dealt(line, kPairs));
}

// As before there were tiles: sequences that are alike have workers of their own.
TEST(LatentCut, SequencesOfOneTileHaveWorkersOfTheirOwn) {
  const Cut cut = Cut::of(128, 2, false, -1, true);
  const WorkPlan plan = plan_work(line_of(cut, 16, {1, 4096}), 16, kPairs, 64);
  EXPECT_EQ(plan.splits_each, 4);
  EXPECT_EQ(plan.count, 64);
  const WorkPlan none = plan_work({}, 3, kPairs, 64);
  EXPECT_EQ(none.count, 0);
  const Cut three = Cut::of(64, 3, true, -1, true);  // chains of three drafts
  EXPECT_EQ(tiles_of(three, {3, 500}), 1);
  EXPECT_EQ(units_of(three, {3, 500}), 8);
}

}  // namespace
}  // namespace quire::attn::cuda::latent
