#include "text/added_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"

namespace quire::text {
namespace {

using Entry = AddedTokenFinder::Entry;

// The sections as text: tokens in brackets.
std::string show(const AddedTokenFinder& finder, const std::string& text, bool parse_special = true) {
  std::string shown;
  for (const Section& section : finder.sections(text, parse_special)) {
    const std::string part = text.substr(section.range.begin, section.range.end - section.range.begin);
    shown += section.id ? cat("[", *section.id, ":", part, "]") : cat("(", part, ")");
  }
  return shown;
}

TEST(AddedTokens, TheLeftmostThenTheLongest) {
  const AddedTokenFinder finder({{"ab", {.id = 1}}, {"abc", {.id = 2}}, {"bcd", {.id = 3}}, {"a", {.id = 4}}});
  EXPECT_EQ(show(finder, "xabcdx"), "(x)[2:abc](dx)");
  EXPECT_EQ(show(finder, "abd"), "[1:ab](d)");
  EXPECT_EQ(show(finder, "bcdab"), "[3:bcd][1:ab]");
  EXPECT_EQ(show(finder, "aa"), "[4:a][4:a]");
  EXPECT_EQ(show(finder, ""), "");
  EXPECT_EQ(show(finder, "xyz"), "(xyz)");
}

TEST(AddedTokens, SpecialsOnlyWhenAsked) {
  const AddedTokenFinder finder({{"<s>", {.id = 1, .special = true}}, {"<t>", {.id = 2}}});
  EXPECT_EQ(show(finder, "a<s>b<t>"), "(a)[1:<s>](b)[2:<t>]");
  EXPECT_EQ(show(finder, "a<s>b<t>", false), "(a<s>b)[2:<t>]");
}

TEST(AddedTokens, WhiteSpaceIsTakenAlong) {
  const AddedTokenFinder finder(
      {{"<l>", {.id = 1, .lstrip = true}}, {"<r>", {.id = 2, .rstrip = true}}, {"<n>", {.id = 3}}});
  EXPECT_EQ(show(finder, "a \u3000<l> b"), "(a)[1: \u3000<l>]( b)");
  EXPECT_EQ(show(finder, "a <r>\t\n b"), "(a )[2:<r>\t\n ](b)");
  EXPECT_EQ(show(finder, " <n> "), "( )[3:<n>]( )");
  EXPECT_EQ(show(finder, "<r>  <l>"), "[2:<r>  ][1:<l>]");
  EXPECT_EQ(show(finder, "  <l>"), "[1:  <l>]");
}

TEST(AddedTokens, SingleWordsStandAlone) {
  const AddedTokenFinder finder({{"cat", {.id = 1, .single_word = true}}});
  EXPECT_EQ(show(finder, "cat"), "[1:cat]");
  EXPECT_EQ(show(finder, "a cat!"), "(a )[1:cat](!)");
  EXPECT_EQ(show(finder, "cats"), "(cats)");
  EXPECT_EQ(show(finder, "\u00E9cat"), "(\u00E9cat)");
}

TEST(AddedTokens, NoneAtAll) { EXPECT_EQ(show(AddedTokenFinder({}), "text"), "(text)"); }

TEST(AddedTokens, WordParts) {
  for (const char32_t code : {U'a', U'_', U'7', U'\u0301', U'\u0939', U'\u200D', U'\u216B'})
    EXPECT_TRUE(is_word_part(code)) << static_cast<uint32_t>(code);
  for (const char32_t code : {U' ', U'-', U'\u00BD', U'\u20AC'})
    EXPECT_FALSE(is_word_part(code)) << static_cast<uint32_t>(code);
}

}  // namespace
}  // namespace quire::text
