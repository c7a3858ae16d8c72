#include "text/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/check.h"

namespace quire::text {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern);
  RegexMatcher matcher(regex);
  std::vector<std::string> found;
  for_each_match(matcher, text, [&](TextRange r) { found.push_back(text.substr(r.begin, r.end - r.begin)); });
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, UnicodeClassesAndCase) {
  EXPECT_EQ(matches("\\p{L}+", "ab\u00E9 \u0436\u4E2D1"), (Strings{"ab\u00E9", "\u0436\u4E2D"}));
  EXPECT_EQ(matches("(?i:'s|'ll)", "'S 'lL 'x 's"), (Strings{"'S", "'lL", "'s"}));
  EXPECT_EQ(matches("\\p{N}{1,3}", "12345"), (Strings{"123", "45"}));
}

TEST(Regex, SpacesAreUnicodeWhiteSpace) {
  // U+180E is no White_Space any more, though PCRE2's own \s has it; U+0085 is.
  EXPECT_EQ(matches("\\s", "\u180E\u0085\u00A0\u3000\t"), (Strings{"\u0085", "\u00A0", "\u3000", "\t"}));
  EXPECT_EQ(matches("[^\\s]+", "a\u180Eb c"), (Strings{"a\u180Eb", "c"}));
  EXPECT_EQ(matches("\\S+", "a\u180Eb\u2003c"), (Strings{"a\u180Eb", "c"}));
  EXPECT_EQ(matches("\\s+(?!\\S)|\\s+", "  a"), (Strings{" ", " "}));
}

TEST(Regex, WordsHaveMarksAndLinesHaveEnds) {
  EXPECT_EQ(matches("\\w+", "e\u0301_1 \u00BD"), (Strings{"e\u0301_1"}));
  EXPECT_EQ(matches("x$", "x\nx"), (Strings{"x", "x"}));
}

TEST(Regex, EmptyMatchesMoveOnByWholeCharacters) {
  EXPECT_EQ(matches("x*", "\u20ACx"), (Strings{"", "x", ""}));
  EXPECT_EQ(matches("(?=\u20AC)", "\u20AC\u20AC"), (Strings{"", ""}));
}

TEST(Regex, EscapedTextMatchesItself) {
  const std::string odd = "a.b*[c]{1}\\d|(\u20AC)^$ -";
  EXPECT_EQ(matches(Regex::escaped(odd), "x" + odd + "y"), (Strings{odd}));
}

TEST(Regex, BadPatternsAreRefused) {
  EXPECT_THROW(Regex("(a"), CheckError);
  EXPECT_THROW(Regex("\\p{Nonsense}"), CheckError);
  for (const char* pattern : {"\\bword", "\\h", "[a[b]]", "[a-z&&b]", "[\\W]"})
    EXPECT_THROW(Regex{pattern}, CheckError);
}

TEST(Regex, EndlessBacktrackingEndsInAnError) {
  const Regex regex("(a+)+[bc]");
  RegexMatcher matcher(regex);
  TextRange match;
  EXPECT_THROW(matcher.find(std::string(100, 'a'), 0, match), CheckError);
}

TEST(Regex, LongRunsAreNoProblem) {
  const std::string spaces(5'000'000, ' ');
  EXPECT_EQ(matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces), (Strings{spaces}));
  EXPECT_EQ(matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces + "x").size(), 2u);
}

}  // namespace
}  // namespace quire::text
