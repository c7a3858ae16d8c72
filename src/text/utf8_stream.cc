#include "text/utf8_stream.h"

#include "base/utf8.h"

namespace quire::text {

std::string Utf8Stream::push(std::string_view bytes) {
  if (drop_space_ && !bytes.empty()) {
    drop_space_ = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  held_ += bytes;
  std::string_view left = held_;
  std::string text;
  while (!left.empty()) {
    const Utf8Char next = read_utf8(left);
    if (next.state == Utf8Char::State::cut) break;
    append_utf8(text, next.code);
    left.remove_prefix(next.bytes);
  }
  held_.erase(0, held_.size() - left.size());
  return text;
}

std::string Utf8Stream::flush() {
  const std::string text = repaired_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace quire::text
