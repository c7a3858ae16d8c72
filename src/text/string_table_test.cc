#include "text/string_table.h"

#include <gtest/gtest.h>

#include <string>

namespace quire::text {
namespace {

TEST(StringTable, FindsWhatWasAddedThroughManyGrowths) {
  StringTable table;
  for (int32_t i = 0; i < 5000; ++i) EXPECT_EQ(table.add("token" + std::to_string(i)), i);
  EXPECT_EQ(table.size(), 5000);
  for (int32_t i = 0; i < 5000; ++i) {
    const std::string text = "token" + std::to_string(i);
    EXPECT_EQ(table[i], text);
    EXPECT_EQ(table.find(text), i);
  }
  EXPECT_EQ(table.find("token5000"), std::nullopt);
  EXPECT_EQ(table.find("toke"), std::nullopt);
}

TEST(StringTable, OfEqualTextsTheLastIsFound) {
  StringTable table;
  table.add("a");
  table.add("b");
  EXPECT_EQ(table.add("a"), 2);
  EXPECT_EQ(table.find("a"), 2);
  EXPECT_EQ(table[0], "a");
}

TEST(StringTable, EmptyTextAndZeroBytesAreTextsLikeOthers) {
  StringTable table;
  EXPECT_EQ(table.find(""), std::nullopt);
  table.add("");
  table.add(std::string("\0x", 2));
  EXPECT_EQ(table.find(""), 0);
  EXPECT_EQ(table.find(std::string("\0x", 2)), 1);
  EXPECT_EQ(table.find(std::string("\0", 1)), std::nullopt);
}

TEST(StringTable, TheUnfindableHasANumberAndAText) {
  StringTable table;
  table.add("seen");
  EXPECT_EQ(table.add_unfindable("unseen"), 1);
  EXPECT_EQ(table[1], "unseen");
  EXPECT_EQ(table.find("unseen"), std::nullopt);
}

TEST(StringTable, ReservingChangesNothing) {
  StringTable table;
  table.add("before");
  table.reserve(1000, 1000);
  EXPECT_EQ(table.find("before"), 0);
}

}  // namespace
}  // namespace quire::text
