// How a line that is being typed gets onto a terminal: what to print so that the old picture of it is replaced by a new
// one. The line takes as many rows as it needs.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

class LineView {
 public:
  // The bytes that draw the prompt, the text and the cursor (a place in the text, in bytes).
  std::string draw(std::string_view prompt, std::string_view text, size_t cursor, int columns);
  // Those that leave the cursor behind the text, on a row of its own; the next drawing begins there.
  std::string leave(std::string_view prompt, std::string_view text, int columns);

 private:
  int cursor_row_ = 0;  // of the last picture, counted from its first row
};

}  // namespace quire
