#include "line_view.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(LineView, DrawsPromptTextAndCursor) {
  LineView view;
  EXPECT_EQ(view.draw("> ", "abc", 3, 80), "\r\033[J> abc\r\033[5C");
  EXPECT_EQ(view.draw("> ", "abc", 1, 80), "\r\033[J> abc\r\033[3C");
}

TEST(LineView, ReplacesAPictureOfSeveralRows) {
  LineView view;
  view.draw("> ", "abcdefgh", 8, 6);  // "> abcd" and "efgh"
  EXPECT_EQ(view.draw("> ", "ab", 2, 6), "\033[1A\r\033[J> ab\r\033[4C");
}

TEST(LineView, GoesUpToACursorInAnEarlierRow) {
  LineView view;
  EXPECT_EQ(view.draw("> ", "one\ntwo\nsix", 5, 80), "\r\033[J> one\r\ntwo\r\nsix\033[1A\r\033[1C");
}

TEST(LineView, ARowThatIsJustFullIsLeft) {
  LineView view;
  EXPECT_EQ(view.draw("> ", "abcd", 4, 6), "\r\033[J> abcd\r\n\r");
  EXPECT_EQ(view.draw("> ", "abc", 3, 6), "\033[1A\r\033[J> abc\r\033[5C");
}

TEST(LineView, WideCharactersTakeTwoColumns) {
  LineView view;
  EXPECT_EQ(view.draw("> ", "\u4f60\u597d", 6, 80), "\r\033[J> \u4f60\u597d\r\033[6C");
  EXPECT_EQ(view.draw("> ", "\u4f60\u597d", 6, 5), "\r\033[J> \u4f60\r\n\u597d\r\033[2C");
}

TEST(LineView, BytesThatAreNoTextTakeOneColumn) {
  LineView view;
  EXPECT_EQ(view.draw("", "a\tb\xff", 4, 80), "\r\033[Ja b \r\033[4C");
}

TEST(LineView, LeavesTheCursorBehindTheLine) {
  LineView view;
  view.draw("> ", "ab", 0, 80);
  EXPECT_EQ(view.leave("> ", "ab", 80), "\r\033[J> ab\r\033[4C\r\n");
  EXPECT_EQ(view.draw("> ", "", 0, 80), "\r\033[J> \r\033[2C");
}

}  // namespace
}  // namespace quire
