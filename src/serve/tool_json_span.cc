#include "serve/tool_json_span.h"

namespace quire::serve {

bool is_json_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

JsonSpan::Place JsonSpan::in_string(char byte) {
  if (escaped_) {
    escaped_ = false;
    return Place::inside;
  }
  escaped_ = byte == '\\';
  in_string_ = byte != '"';
  return in_string_ || depth_ > 0 ? Place::inside : Place::last;
}

JsonSpan::Place JsonSpan::push(char byte) {
  if (in_string_) return in_string(byte);
  const bool first = !begun_;
  begun_ = true;
  switch (byte) {
    case '"':
      if (depth_ == 0 && !first) return Place::after;
      in_string_ = true;
      return Place::inside;
    case '{':
    case '[':
      if (depth_ == 0 && !first) return Place::after;
      ++depth_;
      return Place::inside;
    case '}':
    case ']':
      if (depth_ == 0) return Place::after;
      return --depth_ == 0 ? Place::last : Place::inside;
    default:
      return depth_ == 0 && (is_json_space(byte) || byte == ',') ? Place::after : Place::inside;
  }
}

}  // namespace quire::serve
