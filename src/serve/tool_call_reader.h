// One call of a function as models write it, {"name": "f", "arguments": {...}}, read byte by byte. As soon as the name
// is known, the call is announced, and its arguments follow as they come, in the very bytes that the model writes.
//
// The keys may come in any order; "parameters" means "arguments". Arguments that are a string of JSON are unwrapped.
// What is written after the name is not judged: like a caller of OpenAI's, ours gets what the model wrote.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "serve/tool_json_span.h"

namespace quire::serve {

struct ToolEvent {
  enum class Kind {
    reasoning,  // before the answer (reasoning_parser.h)
    content,    // text that is no call
    call,       // a call begins; the text is the function's name
    arguments   // more of the last call's arguments
  };
  Kind kind;
  std::string text;
  friend bool operator==(const ToolEvent&, const ToolEvent&) = default;
};

using ToolEvents = std::vector<ToolEvent>;
void add_event(ToolEvents& events, ToolEvent::Kind kind, std::string_view text);  // joined with its equal before

class CallReader {
 public:
  enum class State {
    reading,
    done,        // with the byte just pushed
    not_a_call,  // nothing was announced; the byte is not taken
    broken       // the call was announced, and then something came that is no JSON; the byte is not taken
  };
  explicit CallReader(const std::vector<std::string>& names) : names_(names) {}

  State push(char byte, ToolEvents& events);
  bool announced() const { return announced_; }

 private:
  enum class Expects { object, key_or_end, key, in_key, colon, value, in_value, comma_or_end };
  enum class Field { name, arguments, other };

  State push_structure(char byte, ToolEvents& events);
  State end_key();
  State push_value(char byte, ToolEvents& events);
  State end_value(ToolEvents& events);
  State end_object(ToolEvents& events);
  State fail() const { return announced_ ? State::broken : State::not_a_call; }
  bool streams() const { return announced_ && field_ == Field::arguments && text_[0] != '"' && text_[0] != 'n'; }
  void tell(ToolEvents& events);

  const std::vector<std::string>& names_;
  Expects expects_ = Expects::object;
  Field field_ = Field::other;
  JsonSpan span_;
  std::string text_;              // of the key or the value that is being read
  std::string name_, arguments_;  // arguments that came before the name
  bool announced_ = false, has_arguments_ = false;
};

}  // namespace quire::serve
