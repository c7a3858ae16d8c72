#include "serve/tool_parser.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::serve {
namespace {

using Kind = ToolEvent::Kind;

bool begins(std::string_view marker, std::string_view text) { return marker.starts_with(text); }
bool is_name_part(char byte) { return std::isalnum(static_cast<unsigned char>(byte)) || byte == '_' || byte == '-'; }

// Between two calls: what separates them, and brackets that close, of which models write too many at times.
bool is_between_calls(char byte) {
  return is_json_space(byte) || byte == ',' || byte == ';' || byte == '}' || byte == ']';
}

std::string after_separators(const std::string& text) {
  return {std::find_if_not(text.begin(), text.end(), is_between_calls), text.end()};
}

}  // namespace

const ToolForm& tool_form(std::string_view name, std::string_view chat_template) {
  static constexpr const ToolForm* kForms[] = {&kHermesForm, &kLlama3Form, &kMistralForm};
  for (const ToolForm* form : kForms) {
    const bool meant = name.empty() ? chat_template.find(form->opener) != std::string_view::npos : name == form->name;
    if (meant) return *form;
  }
  check(name.empty(), "there is no parser of tool calls named ", in_quotes(name), ": hermes, llama3 and mistral are");
  return kHermesForm;
}

ToolParser::ToolParser(const ToolForm& form, std::vector<std::string> names, int most_calls)
    : form_(form),
      names_(std::move(names)),
      most_calls_(most_calls),
      state_(form.from_start ? State::opened : State::content) {}

ToolEvents ToolParser::push(std::string_view text) {
  for (const char byte : text) push(byte);
  return std::exchange(events_, {});
}

ToolEvents ToolParser::finish() {
  if (state_ == State::content || state_ == State::opened || state_ == State::in_name ||
      (state_ == State::in_call && !reader_->announced()))
    no_call();
  if (state_ == State::between) show(after_separators(raw_));  // the beginning of a marker
  if (calls_ == 0) add_event(events_, Kind::content, spaces_);
  return std::exchange(events_, {});
}

void ToolParser::push(char byte) {
  switch (state_) {
    case State::content:
      return push_content(byte);
    case State::opened:
      return push_opened(byte);
    case State::in_call:
      return push_call(byte);
    case State::in_name:
      return push_name(byte);
    case State::arguments:
      return push_arguments(byte);
    case State::between:
      return push_between(byte);
  }
}

void ToolParser::push_content(char byte) {
  raw_ += byte;
  if (!form_.opener.empty() && raw_ == form_.opener) return open(State::opened, raw_);
  size_t shown = 0;
  while (shown < raw_.size() && !begins(form_.opener, std::string_view(raw_).substr(shown))) ++shown;
  show(std::string_view(raw_).substr(0, shown));
  raw_.erase(0, shown);
}

void ToolParser::push_opened(char byte) {
  if (byte == '{') return begin_call(byte);
  if (is_json_space(byte) || (form_.in_list && byte == '[')) {
    raw_ += byte;
  } else if (form_.name_first && is_name_part(byte)) {
    open(State::in_name, raw_ + byte);
  } else {
    no_call();
    push_content(byte);
  }
}

void ToolParser::begin_call(char byte) {
  reader_ = std::make_unique<CallReader>(names_);
  state_ = State::in_call;
  push_call(byte);
}

void ToolParser::push_call(char byte) {
  raw_ += byte;
  ToolEvents events;
  const CallReader::State state = reader_->push(byte, events);
  take(events);
  if (reader_->announced()) raw_.clear();
  switch (state) {
    case CallReader::State::reading:
      return;
    case CallReader::State::done:
      return end_call();
    case CallReader::State::broken:
      end_call();
      return push_between(byte);
    case CallReader::State::not_a_call:
      raw_.pop_back();
      no_call();
      return push_content(byte);
  }
}

// f[CALL_ID]abc[ARGS]{...}: the name ends at the first bracket.
void ToolParser::push_name(char byte) {
  raw_ += byte;
  if (is_name_part(byte) || byte == '[' || byte == ']') return;
  if (byte != '{') return no_call();
  const size_t begin = raw_.find_first_not_of(" \t\r\n", form_.opener.size());
  const std::string name = raw_.substr(begin, raw_.find_first_of("[{ ", begin) - begin);
  if (std::find(names_.begin(), names_.end(), name) == names_.end()) return no_call();
  raw_.clear();
  take({{Kind::call, name}});
  state_ = State::arguments;
  span_.reset();
  push_arguments(byte);
}

void ToolParser::push_arguments(char byte) {
  const JsonSpan::Place place = span_.push(byte);
  take({{Kind::arguments, std::string(1, byte)}});
  if (place == JsonSpan::Place::last) end_call();
}

void ToolParser::push_between(char byte) {
  raw_ += byte;
  const std::string text = after_separators(raw_);
  if (text.empty()) return;
  if (text == "{") {
    raw_.pop_back();
    return begin_call(byte);
  }
  if (text == form_.opener) return open(State::opened, text);
  if (text == form_.closer) return open(State::between, "");
  if (begins(form_.opener, text) || begins(form_.closer, text)) return;
  open(State::content, "");
  again(text);
}

void ToolParser::open(State state, std::string_view raw) {
  raw_ = std::string(raw);
  state_ = state;
}

void ToolParser::end_call() { open(State::between, ""); }

void ToolParser::no_call() {
  show(raw_);
  open(State::content, "");
}

void ToolParser::show(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  add_event(events_, Kind::content, std::exchange(spaces_, {}));
  add_event(events_, Kind::content, text.substr(0, end + 1));
  spaces_ = text.substr(end + 1);
}

void ToolParser::take(const ToolEvents& events) {
  for (const ToolEvent& event : events) {
    if (event.kind == Kind::call) {
      ++calls_;
      spaces_.clear();
    }
    if (calls_ <= most_calls_) add_event(events_, event.kind, event.text);
  }
}

void ToolParser::again(std::string_view text) {
  for (const char byte : text) push(byte);
}

}  // namespace quire::serve
