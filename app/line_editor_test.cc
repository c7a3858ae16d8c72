#include "line_editor.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr const char* kUp = "\033[A";
constexpr const char* kDown = "\033[B";
constexpr const char* kLeft = "\033[D";
constexpr const char* kDelete = "\033[3~";

LineEditor::Done type(LineEditor& editor, std::string_view keys) {
  LineEditor::Done done = LineEditor::Done::no;
  for (const char byte : keys) done = editor.take(byte);
  return done;
}

std::string typed(std::string_view keys) {
  LineEditor editor;
  type(editor, keys);
  return editor.text();
}

TEST(LineEditor, TakesCharactersAndEndsWithEnter) {
  LineEditor editor;
  EXPECT_EQ(type(editor, "hello"), LineEditor::Done::no);
  EXPECT_EQ(editor.take('\n'), LineEditor::Done::line);
  EXPECT_EQ(editor.finish(), "hello");
  EXPECT_EQ(editor.text(), "");
}

TEST(LineEditor, MovesAndErasesWholeCharacters) {
  EXPECT_EQ(typed("a\u00e9\U0001F600\177"), "a\u00e9");
  EXPECT_EQ(typed(std::string("a\u00e9b") + kLeft + kLeft + "x"), "ax\u00e9b");
  EXPECT_EQ(typed(std::string("a\u00e9b") + kLeft + kLeft + kDelete), "ab");
  EXPECT_EQ(typed("\177\177a"), "a");
}

TEST(LineEditor, KnowsTheKeysOfShells) {
  EXPECT_EQ(typed("one two\x17"), "one ");
  EXPECT_EQ(typed("one two  \x17"), "one ");
  EXPECT_EQ(typed("one\x01zero \x05!"), "zero one!");
  EXPECT_EQ(typed("one\x15"), "");
  EXPECT_EQ(typed("one\x01\x0b"), "");
  EXPECT_EQ(typed("ab\033[H-\033OF+\033[1~<\033[4~>"), "<-ab+>");
}

TEST(LineEditor, CtrlDEndsOnlyAnEmptyLine) {
  LineEditor editor;
  EXPECT_EQ(editor.take('\4'), LineEditor::Done::end);
  EXPECT_EQ(type(editor, "a\4"), LineEditor::Done::no);
  EXPECT_EQ(editor.text(), "a");
}

TEST(LineEditor, GoesThroughWhatWasTypedBefore) {
  LineEditor editor;
  for (const char* line : {"first", "second", "second", ""}) {
    type(editor, line);
    editor.finish();
  }
  type(editor, "new");
  type(editor, kUp);
  EXPECT_EQ(editor.text(), "second");
  type(editor, kUp);
  type(editor, kUp);
  EXPECT_EQ(editor.text(), "first");
  type(editor, kDown);
  type(editor, kDown);
  type(editor, kDown);
  EXPECT_EQ(editor.text(), "new");
}

TEST(LineEditor, PastedLineEndsSubmitNothing) {
  LineEditor editor;
  EXPECT_EQ(type(editor, "\033[200~one\ntwo\4\n\033[201~"), LineEditor::Done::no);
  EXPECT_EQ(editor.text(), "one\ntwo\n");
  EXPECT_EQ(editor.take('\n'), LineEditor::Done::line);
}

TEST(LineEditor, IgnoresKeysItDoesNotKnow) {
  EXPECT_EQ(typed("a\033[15~\033[1;5Cb\033xc\033OPd\x02"), "abcd");
  EXPECT_EQ(typed("\033[" + std::string(40, '1') + "\033[D"), std::string(40 - 15, '1'));
}

TEST(LineEditor, AClearedLineIsForgotten) {
  LineEditor editor;
  for (const char byte : std::string("one\n")) editor.take(byte);
  editor.finish();
  for (const char byte : std::string("half typed\033[")) editor.take(byte);
  editor.clear();
  EXPECT_EQ(editor.text(), "");
  EXPECT_EQ(editor.cursor(), 0u);
  editor.take('x');  // no part of the key that was not complete
  EXPECT_EQ(editor.text(), "x");
  editor.clear();
  for (const char byte : std::string("\033[A")) editor.take(byte);
  EXPECT_EQ(editor.text(), "one");
}

}  // namespace
}  // namespace quire
