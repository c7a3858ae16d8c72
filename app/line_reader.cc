#include "line_reader.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "base/check.h"

namespace quire {
namespace {

// While it lives, keys come one by one and are not echoed; Ctrl-C is a signal as always.
class KeyByKey {
 public:
  KeyByKey() {
    tcgetattr(STDIN_FILENO, &before_);
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
    std::cout << "\033[?2004h";  // pasted text comes between marks
  }
  ~KeyByKey() {
    std::cout << "\033[?2004l" << std::flush;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  KeyByKey(const KeyByKey&) = delete;
  KeyByKey& operator=(const KeyByKey&) = delete;

 private:
  termios before_;
};

int terminal_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : kUsual;
}

bool somebody_types() {
  const char* terminal = std::getenv("TERM");
  const bool can_move = terminal && std::string_view(terminal) != "dumb";
  return can_move && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

}  // namespace

LineReader::LineReader(Interrupt& interrupt) : interrupt_(interrupt), typed_(somebody_types()) {}

std::optional<std::string> LineReader::next(const std::string& prompt) {
  return typed_ ? next_typed(prompt) : next_piped();
}

std::optional<std::string> LineReader::next_typed(const std::string& prompt) {
  const KeyByKey mode;
  LineEditor::Done done = take_keys();  // of keys that were typed before the prompt came
  while (done == LineEditor::Done::no) {
    std::cout << view_.draw(prompt, editor_.text(), editor_.cursor(), terminal_columns()) << std::flush;
    if (fill())
      done = take_keys();
    else if (!threw_line_away(prompt))
      done = LineEditor::Done::end;
  }
  std::cout << view_.leave(prompt, editor_.text(), terminal_columns());
  std::string line = editor_.finish();
  if (done == LineEditor::Done::end) return std::nullopt;
  return line;
}

// Whether Ctrl-C came to a line that somebody had begun; the next is on a row of its own.
bool LineReader::threw_line_away(const std::string& prompt) {
  if (!interrupt_.happened() || editor_.text().empty()) return false;
  std::cout << view_.leave(prompt, editor_.text(), terminal_columns());
  editor_.clear();
  interrupt_.forget();
  return true;
}

LineEditor::Done LineReader::take_keys() {
  LineEditor::Done done = LineEditor::Done::no;
  size_t used = 0;
  while (done == LineEditor::Done::no && used < buffer_.size()) done = editor_.take(buffer_[used++]);
  buffer_.erase(0, used);
  return done;
}

std::optional<std::string> LineReader::next_piped() {
  size_t searched = 0;
  while (buffer_.find('\n', searched) == std::string::npos) {
    searched = buffer_.size();
    if (!fill()) break;
  }
  if (interrupt_.happened() || buffer_.empty()) return std::nullopt;
  const size_t end = std::min(buffer_.find('\n', searched), buffer_.size());
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

// False at the end of the input, and when Ctrl-C came while nothing did.
bool LineReader::fill() {
  char block[4096];
  const ssize_t count = interrupt_.happened() ? 0 : read(STDIN_FILENO, block, sizeof(block));
  check(count >= 0 || errno == EINTR, "standard input cannot be read");
  if (count > 0) buffer_.append(block, static_cast<size_t>(count));
  return count > 0;
}

}  // namespace quire
