// What a model thinks before it answers, told apart from the answer while the text still comes:
//
//   <think>Two and two...</think>Four.        reasoning "Two and two...", content "Four."
//
// Reasoning stands where the text begins: after <think>, or at once where the prompt has ended with it. A <think> later
// on is content. White space next to the tags is dropped. How the text is cut into pieces makes no difference; what may
// still become a tag is held back, with white space before it, and nothing else is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::serve {

inline constexpr std::string_view kReasoningBegin = "<think>", kReasoningEnd = "</think>";

enum class Reasoning : uint8_t {
  none,       // the text is all content
  may_begin,  // if the text begins with the tag
  begun       // by the prompt, or by the model's habit
};

// Where an answer begins, by the parser's name (--reasoning-parser) and the end of the prompt's text. "qwen3",
// "smollm3": with the tag or without; "deepseek-r1": always in reasoning; "none". "": "qwen3" where the chat template
// knows the tags, else "none". A prompt that ends with a tag has the last word. Throws CheckError for an unknown name.
bool reasons(std::string_view parser, std::string_view chat_template);
Reasoning reasoning_after(std::string_view parser, std::string_view prompt);

class ReasoningParser {
 public:
  explicit ReasoningParser(Reasoning start) : otherwise_(start == Reasoning::begun ? State::inside : State::content) {}

  struct Parts {
    std::string reasoning = {}, content = {};
  };
  Parts push(std::string_view text);
  Parts finish();  // the end of the text

  bool began() const { return began_; }
  bool is_over() const { return state_ == State::after || state_ == State::content; }

 private:
  enum class State : uint8_t {
    beginning,  // of the text: a tag, white space, or nothing yet
    inside,     // reasoning
    after,      // the tag that ends it: white space
    content
  };
  bool step(Parts& parts);  // false: more text is needed
  bool step_beginning();
  bool step_inside(Parts& parts);
  void enter(State state, size_t taken);

  const State otherwise_;  // than with a tag the text begins so
  State state_ = State::beginning;
  bool began_ = false, shown_ = false;  // some reasoning
  std::string held_;                    // what is not told yet
};

}  // namespace quire::serve
