#include "base/in_quotes.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

TEST(InQuotes, LeavesPlainTextAlone) {
  EXPECT_EQ(in_quotes(""), "\"\"");
  EXPECT_EQ(in_quotes("blk.0.attn_q.weight"), "\"blk.0.attn_q.weight\"");
  EXPECT_EQ(in_quotes("Ġt, 世界, 😀"), "\"Ġt, 世界, 😀\"");
}

TEST(InQuotes, EscapesWhatWouldMoveTheCursorOrEndTheQuotes) {
  EXPECT_EQ(in_quotes("a\nb\tc"), "\"a\\nb\\tc\"");
  EXPECT_EQ(in_quotes("\x1b[2J"), "\"\\x1b[2J\"");
  EXPECT_EQ(in_quotes("\xc2\x9b"), "\"\\xc2\\x9b\"");  // the same escape as one character
  EXPECT_EQ(in_quotes("a\u202eb\u2066\u061c"), "\"a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6\\xd8\\x9c\"");  // turn around what follows
  EXPECT_EQ(in_quotes_if_odd("a file.gguf"), "a file.gguf");
  EXPECT_EQ(in_quotes_if_odd("a\u202eb"), "\"a\\xe2\\x80\\xaeb\"");
  EXPECT_EQ(in_quotes("say \"x\\y\""), "\"say \\\"x\\\\y\\\"\"");
  EXPECT_EQ(in_quotes(std::string(1, '\0')), "\"\\x00\"");
}

TEST(InQuotes, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(in_quotes("\xff"), "\"\\xff\"");
  EXPECT_EQ(in_quotes("\xc0\xaf"), "\"\\xc0\\xaf\"");                    // longer than it need be
  EXPECT_EQ(in_quotes("\xe0\x80\xaf"), "\"\\xe0\\x80\\xaf\"");           // likewise
  EXPECT_EQ(in_quotes("\xed\xa0\x80"), "\"\\xed\\xa0\\x80\"");           // half of a pair of UTF-16
  EXPECT_EQ(in_quotes("\xf4\x90\x80\x80"), "\"\\xf4\\x90\\x80\\x80\"");  // past the last character
  EXPECT_EQ(in_quotes("\xe4\xb8"), "\"\\xe4\\xb8\"");                    // cut off
}

TEST(InQuotes, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(in_quotes(std::string(100, 'x'), 3), "\"xxx\"... (100 bytes)");
  EXPECT_EQ(in_quotes("世界", 4), "\"世\"... (6 bytes)");
  EXPECT_EQ(in_quotes("世界", 6), "\"世界\"");
}

}  // namespace
}  // namespace quire
