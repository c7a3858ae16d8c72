#include "line_view.h"

#include <utf8proc.h>

#include "base/check.h"
#include "base/utf8.h"

namespace quire {
namespace {

struct Spot {
  int row = 0;
  int column = 0;
};

// Prints characters as a terminal of this width would place them.
class Layout {
 public:
  Layout(Spot place, int columns) : place_(place), columns_(columns) {}

  void put(std::string_view text) {
    while (!text.empty()) {
      const Utf8Char character = read_utf8(text);
      put(text.substr(0, character.bytes), character);
      text.remove_prefix(character.bytes);
    }
  }
  // A terminal keeps its cursor in a row that is just full; the next one is made here, so that places are true.
  void settle() {
    if (place_.column == columns_) next_row();
  }

  const Spot& place() const { return place_; }
  const std::string& printed() const { return printed_; }

 private:
  void put(std::string_view bytes, const Utf8Char& character) {
    if (bytes == "\n") return next_row();
    const bool shown = character.state == Utf8Char::State::whole && character.code >= ' ';
    const int width = shown ? utf8proc_charwidth(static_cast<utf8proc_int32_t>(character.code)) : 1;
    if (place_.column + width > columns_) next_row();
    printed_ += shown ? bytes : std::string_view(" ");
    place_.column += width;
  }
  void next_row() {
    printed_ += "\r\n";
    place_ = {place_.row + 1, 0};
  }

  Spot place_;
  const int columns_;
  std::string printed_;
};

std::string move(int count, char direction) { return count > 0 ? cat("\033[", count, std::string(1, direction)) : ""; }

}  // namespace

std::string LineView::draw(std::string_view prompt, std::string_view text, size_t cursor, int columns) {
  Layout layout({}, columns);
  layout.put(prompt);
  layout.put(text.substr(0, cursor));
  layout.settle();
  const Spot wanted = layout.place();
  layout.put(text.substr(cursor));
  layout.settle();
  std::string out = move(cursor_row_, 'A') + "\r\033[J" + layout.printed();
  out += move(layout.place().row - wanted.row, 'A') + "\r" + move(wanted.column, 'C');
  cursor_row_ = wanted.row;
  return out;
}

std::string LineView::leave(std::string_view prompt, std::string_view text, int columns) {
  std::string out = draw(prompt, text, text.size(), columns) + "\r\n";
  cursor_row_ = 0;
  return out;
}

}  // namespace quire
