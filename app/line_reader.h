// Lines of standard input, of any length, read so that Ctrl-C gets through: typed at a terminal with keys to edit them
// (line_editor.h), or as they come through a pipe.
#pragma once
#include <optional>
#include <string>

#include "interrupt.h"
#include "line_editor.h"
#include "line_view.h"

namespace quire {

class LineReader {
 public:
  explicit LineReader(Interrupt& interrupt);

  bool typed() const { return typed_; }  // somebody sits at a terminal
  // Shows the prompt to whoever types. None at the end of the input and after Ctrl-C; at a terminal Ctrl-C first throws
  // away what is typed, and ends nothing.
  std::optional<std::string> next(const std::string& prompt);

 private:
  std::optional<std::string> next_typed(const std::string& prompt);
  LineEditor::Done take_keys();
  bool threw_line_away(const std::string& prompt);
  std::optional<std::string> next_piped();
  bool fill();

  Interrupt& interrupt_;
  const bool typed_;
  std::string buffer_;  // read and not used yet
  LineEditor editor_;
  LineView view_;
};

}  // namespace quire
