#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace quire {
namespace {

using State = Utf8Char::State;

TEST(Utf8, ReadsWhatItWrote) {
  for (const char32_t code : {0x0u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(text, code);
    const Utf8Char read = read_utf8(text + "x");
    EXPECT_EQ(read.state, State::whole);
    EXPECT_EQ(read.code, code);
    EXPECT_EQ(read.bytes, text.size());
  }
}

TEST(Utf8, BrokenCharactersTakeTheirLongestRightBeginning) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\x80z", "a\uFFFDz"},                            // a continuation without a beginning
      {"\xC0\xAF", "\uFFFD\uFFFD"},                      // overlong
      {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"},            // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // past the last code
      {"\xF8\x88\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x9F\x98z", "\uFFFDz"},  // three of four bytes are one mistake
      {"\xE2\x82", "\uFFFD"},        // cut at the end
      {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20AC"},
      {"\xC3\xC3\xA9", "\uFFFD\u00E9"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(repaired_utf8(bytes), text);
    EXPECT_FALSE(is_utf8(bytes));
    EXPECT_TRUE(is_utf8(text));
  }
}

TEST(Utf8, ACutCharacterIsToldFromABrokenOne) {
  EXPECT_EQ(read_utf8("\xF0\x9F\x98").state, State::cut);
  EXPECT_EQ(read_utf8("\xF0\x9F\x98").bytes, 3u);
  EXPECT_EQ(read_utf8("\xF0\x80").state, State::broken);
  EXPECT_EQ(read_utf8("\xFF").state, State::broken);
}

TEST(Utf8, CountsCharacters) {
  EXPECT_EQ(count_characters(""), 0u);
  EXPECT_EQ(count_characters("a\u00E9\u20AC\U0001F600"), 4u);
}

TEST(Utf8, WhiteSpaceIsUnicodes) {
  for (const char32_t code : {U'\t', U'\n', U' ', U'\u0085', U'\u00A0', U'\u1680', U'\u2003', U'\u3000'})
    EXPECT_TRUE(is_white_space(code)) << static_cast<uint32_t>(code);
  for (const char32_t code : {U'a', U'\u180E', U'\u200B', U'\uFEFF'})
    EXPECT_FALSE(is_white_space(code)) << static_cast<uint32_t>(code);
}

}  // namespace
}  // namespace quire
