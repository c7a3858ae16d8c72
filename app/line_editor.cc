#include "line_editor.h"

#include <utility>

namespace quire {
namespace {

constexpr char kEscape = '\033';
constexpr char control(char letter) { return static_cast<char>(letter - 'A' + 1); }
constexpr char kBackspace = '\177';

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }
bool is_control(char byte) { return static_cast<unsigned char>(byte) < ' '; }

// CSI sequences end with a letter or ~, SS3 sequences (ESC O x) after one byte.
bool complete(const std::string& escape) {
  if (escape.size() < 3) return escape.size() == 2 && escape[1] != '[' && escape[1] != 'O';
  return escape[1] == 'O' || (escape.back() >= '@' && escape.back() <= '~');
}

}  // namespace

LineEditor::Done LineEditor::take(char byte) {
  if (!escape_.empty() || byte == kEscape) {
    take_escape(byte);
    return Done::no;
  }
  if (!pasting_) return take_key(byte);
  if (!is_control(byte) || byte == '\n' || byte == '\t') insert(byte);
  return Done::no;
}

LineEditor::Done LineEditor::take_key(char byte) {
  switch (byte) {
    case '\n':
    case '\r':
      return Done::line;
    case control('D'):
      if (text_.empty()) return Done::end;
      erase(cursor_, after());
      break;
    case control('A'):
      cursor_ = 0;
      break;
    case control('E'):
      cursor_ = text_.size();
      break;
    case control('K'):
      erase(cursor_, text_.size());
      break;
    case control('U'):
      erase(0, cursor_);
      break;
    case control('W'):
      erase(word_start(), cursor_);
      break;
    case control('H'):
    case kBackspace:
      erase(before(), cursor_);
      break;
    default:
      if (!is_control(byte) || byte == '\t') insert(byte);
  }
  return Done::no;
}

void LineEditor::take_escape(char byte) {
  constexpr size_t kLongest = 16;  // nothing that a terminal sends for a key is longer
  escape_ += byte;
  if (complete(escape_)) obey_escape(std::string_view(escape_).substr(1));
  if (complete(escape_) || escape_.size() > kLongest) escape_.clear();
}

void LineEditor::obey_escape(std::string_view sequence) {
  if (sequence == "[200~" || sequence == "[201~") {
    pasting_ = sequence == "[200~";
  } else if (sequence == "[D" || sequence == "OD") {
    cursor_ = before();
  } else if (sequence == "[C" || sequence == "OC") {
    cursor_ = after();
  } else if (sequence == "[H" || sequence == "OH" || sequence == "[1~") {
    cursor_ = 0;
  } else if (sequence == "[F" || sequence == "OF" || sequence == "[4~") {
    cursor_ = text_.size();
  } else if (sequence == "[3~") {
    erase(cursor_, after());
  } else if ((sequence == "[A" || sequence == "OA") && recalled_ > 0) {
    recall(recalled_ - 1);
  } else if ((sequence == "[B" || sequence == "OB") && recalled_ < history_.size()) {
    recall(recalled_ + 1);
  }
}

std::string LineEditor::finish() {
  std::string line = std::exchange(text_, "");
  if (!line.empty() && (history_.empty() || history_.back() != line)) history_.push_back(line);
  clear();
  return line;
}

void LineEditor::clear() {
  text_.clear();
  escape_.clear();
  recalled_ = history_.size();
  cursor_ = 0;
  pasting_ = false;
}

void LineEditor::insert(char byte) { text_.insert(text_.begin() + static_cast<std::ptrdiff_t>(cursor_++), byte); }

void LineEditor::erase(size_t begin, size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void LineEditor::recall(size_t line) {
  if (recalled_ == history_.size()) new_text_ = text_;
  recalled_ = line;
  text_ = line == history_.size() ? new_text_ : history_[line];
  cursor_ = text_.size();
}

size_t LineEditor::before() const {
  size_t at = cursor_;
  while (at > 0 && continues_character(text_[--at])) {
  }
  return at;
}

size_t LineEditor::after() const {
  size_t at = cursor_;
  if (at < text_.size()) ++at;
  while (at < text_.size() && continues_character(text_[at])) ++at;
  return at;
}

size_t LineEditor::word_start() const {
  size_t at = cursor_;
  while (at > 0 && text_[at - 1] == ' ') --at;
  while (at > 0 && text_[at - 1] != ' ') --at;
  return at;
}

}  // namespace quire
