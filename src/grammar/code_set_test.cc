#include "grammar/code_set.h"

#include <gtest/gtest.h>

#include "base/check.h"

namespace quire::grammar {
namespace {

TEST(CodeSet, RangesAreMergedAndOrdered) {
  EXPECT_EQ(code_set({{'c', 'd'}, {'a', 'b'}, {'x', 'z'}, {'y', 'y'}}), (CodeSet{{'a', 'd'}, {'x', 'z'}}));
  EXPECT_EQ(code_set({}), CodeSet{});
}

TEST(CodeSet, NulAndSurrogatesAreInNone) {
  EXPECT_EQ(all_but({}), (CodeSet{{1, 0xD7FF}, {0xE000, 0x10FFFF}}));
  EXPECT_EQ(code_set({{0, 0}, {0xD800, 0xDFFF}}), CodeSet{});
}

TEST(CodeSet, DifferencesLeaveTheRest) {
  EXPECT_EQ(without({{'a', 'f'}}, {{'c', 'd'}}), (CodeSet{{'a', 'b'}, {'e', 'f'}}));
  EXPECT_EQ(all_but({{1, 'a'}, {'c', 0x10FFFF}}), (CodeSet{{'b', 'b'}}));
}

TEST(CodeSet, Utf8IsReadAndWritten) {
  const std::string text = "a\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80";
  EXPECT_EQ(code_points(text), U"aé日😀");
  std::string written;
  for (const char32_t code : code_points(text)) written += utf8(code);
  EXPECT_EQ(written, text);
}

TEST(CodeSet, WhatIsNoUtf8IsRefused) {
  for (const char* text :
       {"\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5", "a\xE6\x97"}) {
    EXPECT_THROW(code_points(text), CheckError);
  }
}

}  // namespace
}  // namespace quire::grammar
