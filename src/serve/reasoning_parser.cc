#include "serve/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::serve {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kNames[] = {"qwen3", "smollm3", "deepseek-r1", "none"};

size_t first_letter(std::string_view text) { return std::min(text.find_first_not_of(kSpaces), text.size()); }
size_t end_of_letters(std::string_view text) { return text.find_last_not_of(kSpaces) + 1; }  // npos + 1 is 0

// How many bytes at the end of the text may be the beginning of the tag.
size_t begun_tag(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

}  // namespace

bool reasons(std::string_view parser, std::string_view chat_template) {
  if (parser.empty())
    return chat_template.find(kReasoningBegin) != chat_template.npos ||
           chat_template.find(kReasoningEnd) != chat_template.npos;
  check(std::find(std::begin(kNames), std::end(kNames), parser) != std::end(kNames),
        "there is no parser of reasoning named ", in_quotes(parser), ": qwen3, smollm3, deepseek-r1 and none are");
  return parser != "none";
}

Reasoning reasoning_after(std::string_view parser, std::string_view prompt) {
  const std::string_view written = prompt.substr(0, end_of_letters(prompt));
  if (written.ends_with(kReasoningBegin)) return Reasoning::begun;
  if (written.ends_with(kReasoningEnd)) return Reasoning::none;
  return parser == "deepseek-r1" ? Reasoning::begun : Reasoning::may_begin;
}

ReasoningParser::Parts ReasoningParser::push(std::string_view text) {
  Parts parts;
  held_ += text;
  while (step(parts)) {
  }
  return parts;
}

ReasoningParser::Parts ReasoningParser::finish() {
  Parts parts;
  if (state_ == State::beginning) enter(otherwise_, 0);
  (state_ == State::inside ? parts.reasoning : parts.content) = std::exchange(held_, {});
  return parts;
}

void ReasoningParser::enter(State state, size_t taken) {
  held_.erase(0, taken);
  state_ = state;
  began_ |= state == State::inside;
}

bool ReasoningParser::step(Parts& parts) {
  switch (state_) {
    case State::beginning:
      return step_beginning();
    case State::inside:
      return step_inside(parts);
    case State::after:
      held_.erase(0, first_letter(held_));
      if (!held_.empty()) enter(State::content, 0);
      return !held_.empty();
    case State::content:
      parts.content += std::exchange(held_, {});
      return false;
  }
  return false;
}

bool ReasoningParser::step_beginning() {
  const size_t first = first_letter(held_);
  const std::string_view written = std::string_view(held_).substr(first);
  if (written.starts_with(kReasoningBegin))
    enter(State::inside, first + kReasoningBegin.size());
  else if (kReasoningBegin.starts_with(written))
    return false;
  else
    enter(otherwise_, 0);
  return true;
}

bool ReasoningParser::step_inside(Parts& parts) {
  if (!shown_) held_.erase(0, first_letter(held_));
  const std::string_view held = held_;
  const size_t tag = held.find(kReasoningEnd);
  const bool ends = tag != held.npos;
  const size_t certain = end_of_letters(held.substr(0, ends ? tag : held.size() - begun_tag(held, kReasoningEnd)));
  parts.reasoning += held.substr(0, certain);
  shown_ |= certain > 0;
  if (ends)
    enter(State::after, tag + kReasoningEnd.size());
  else
    held_.erase(0, certain);
  return ends;
}

}  // namespace quire::serve
