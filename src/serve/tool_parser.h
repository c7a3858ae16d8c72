// Calls of functions in the text that a model writes, told apart from what it says, while the text still comes. How the
// text is cut into pieces makes no difference.
//
//   hermes     <tool_call>{"name": "f", "arguments": {...}}</tool_call>, any number of them
//   llama3     {"name": "f", "parameters": {...}} as the whole answer, several with ; between them, also after
//              <|python_tag|>
//   mistral    [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...], or [TOOL_CALLS]f[ARGS]{...}
//   array      [{"name": "f", "parameters": {...}}, ...] or one such object: what a grammar forces (tool_grammar.h)
//
// What turns out not to be a call of a known function is content, as it was written. White space next to a call is
// dropped; without any call the content is the whole text.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/tool_call_reader.h"

namespace quire::serve {

struct ToolForm {
  std::string_view name;
  std::string_view opener;  // what announces calls anywhere in the text; "": nothing does
  std::string_view closer;  // what may follow a call; "": nothing
  bool from_start;          // the text may begin with a call, unannounced
  bool in_list;             // calls may stand in brackets
  bool name_first;          // f{...} and f[ARGS]{...} are calls
};
inline constexpr ToolForm kHermesForm{"hermes", "<tool_call>", "</tool_call>", false, false, false};
inline constexpr ToolForm kLlama3Form{"llama3", "<|python_tag|>", "", true, false, false};
inline constexpr ToolForm kMistralForm{"mistral", "[TOOL_CALLS]", "", false, true, true};
inline constexpr ToolForm kArrayForm{"array", "", "", true, true, false};

// By its name or, when that is empty, by what the chat template writes. Throws CheckError for an unknown name.
const ToolForm& tool_form(std::string_view name, std::string_view chat_template);

class ToolParser {
 public:
  // names: the functions that exist. most_calls: those after are left out.
  ToolParser(const ToolForm& form, std::vector<std::string> names, int most_calls);
  ToolParser(const ToolParser&) = delete;
  ToolParser& operator=(const ToolParser&) = delete;

  ToolEvents push(std::string_view text);
  ToolEvents finish();  // the end of the text

 private:
  enum class State {
    content,
    opened,     // after the opener, or where the text begins
    in_call,    // {...}
    in_name,    // f, [ARGS]
    arguments,  // ... {...}
    between     // after a call
  };
  void push(char byte);
  void push_content(char byte);
  void push_opened(char byte);
  void push_call(char byte);
  void push_name(char byte);
  void push_arguments(char byte);
  void push_between(char byte);

  void open(State state, std::string_view raw);
  void begin_call(char byte);
  void end_call();
  void no_call();  // what was read since the opener is content
  void show(std::string_view text);
  void take(const ToolEvents& events);
  void again(std::string_view text);

  const ToolForm form_;
  const std::vector<std::string> names_;
  const int most_calls_;
  State state_;
  std::string raw_;     // since the opener, until a call is announced; or what may become an opener or a closer
  std::string spaces_;  // the last of the content: dropped if a call follows
  std::unique_ptr<CallReader> reader_;
  JsonSpan span_;
  int calls_ = 0;
  ToolEvents events_;
};

}  // namespace quire::serve
