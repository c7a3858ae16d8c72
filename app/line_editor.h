// The line that somebody is typing: keys in, text and cursor out. Knows no terminal.
//
// Keys: characters of UTF-8; the arrows, Home, End, Delete and Backspace; Ctrl-A, E, K, U, W as in shells; up and down
// go through the lines typed before. Pasted text (between the marks of bracketed paste) is taken as it is, so that its
// line ends do not submit anything.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

class LineEditor {
 public:
  enum class Done { no, line, end };  // end: Ctrl-D on an empty line
  Done take(char byte);

  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes, at the start of a character
  std::string finish();                      // the typed line, remembered; the next one is empty
  void clear();                              // the typed line is thrown away

 private:
  Done take_key(char byte);
  void take_escape(char byte);
  void obey_escape(std::string_view sequence);
  void insert(char byte);
  void erase(size_t begin, size_t end);
  void recall(size_t line);
  size_t before() const;  // the start of the character before the cursor
  size_t after() const;
  size_t word_start() const;

  std::string text_;
  size_t cursor_ = 0;
  std::string escape_;  // an escape sequence that is not complete yet
  bool pasting_ = false;
  std::vector<std::string> history_;
  size_t recalled_ = 0;   // the line of history that is shown; history_.size(): the new one
  std::string new_text_;  // the new line, while an old one is shown
};

}  // namespace quire
