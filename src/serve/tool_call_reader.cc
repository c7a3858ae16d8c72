#include "serve/tool_call_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace quire::serve {
namespace {

std::optional<std::string> unquoted(const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

void add_event(ToolEvents& events, ToolEvent::Kind kind, std::string_view text) {
  if (kind != ToolEvent::Kind::call && text.empty()) return;
  if (kind != ToolEvent::Kind::call && !events.empty() && events.back().kind == kind)
    events.back().text += text;
  else
    events.push_back({kind, std::string(text)});
}

CallReader::State CallReader::push(char byte, ToolEvents& events) {
  switch (expects_) {
    case Expects::in_key:
      text_ += byte;
      return span_.push(byte) == JsonSpan::Place::last ? end_key() : State::reading;
    case Expects::in_value:
      return push_value(byte, events);
    default:
      return is_json_space(byte) ? State::reading : push_structure(byte, events);
  }
}

CallReader::State CallReader::push_structure(char byte, ToolEvents& events) {
  const auto expect = [&](Expects next) {
    expects_ = next;
    return State::reading;
  };
  switch (expects_) {
    case Expects::object:
      return byte == '{' ? expect(Expects::key_or_end) : fail();
    case Expects::key_or_end:
    case Expects::key:
      if (byte == '}' && expects_ == Expects::key_or_end) return end_object(events);
      if (byte != '"') return fail();
      text_ = byte;
      span_.reset();
      span_.push(byte);
      return expect(Expects::in_key);
    case Expects::colon:
      return byte == ':' ? expect(Expects::value) : fail();
    case Expects::value:
      if (byte == ',' || byte == '}' || byte == ']') return fail();
      text_.clear();
      span_.reset();
      expects_ = Expects::in_value;
      return push_value(byte, events);
    default:  // comma_or_end
      if (byte == ',') return expect(Expects::key);
      return byte == '}' ? end_object(events) : fail();
  }
}

CallReader::State CallReader::end_key() {
  const std::optional<std::string> key = unquoted(text_);
  if (key == "name" && name_.empty())
    field_ = Field::name;
  else if ((key == "arguments" || key == "parameters") && !has_arguments_)
    field_ = Field::arguments;
  else
    field_ = Field::other;
  // Objects of other kinds are distinguished from calls early, so that they are shown as they come.
  if (field_ == Field::other && !announced_ && key != "id" && key != "type") return State::not_a_call;
  expects_ = Expects::colon;
  return State::reading;
}

CallReader::State CallReader::push_value(char byte, ToolEvents& events) {
  const JsonSpan::Place place = span_.push(byte);
  if (place != JsonSpan::Place::after) {
    text_ += byte;
    if (streams()) add_event(events, ToolEvent::Kind::arguments, std::string_view(&byte, 1));
    if (place == JsonSpan::Place::inside) return State::reading;
  }
  expects_ = Expects::comma_or_end;
  const State state = end_value(events);
  const bool byte_left = place == JsonSpan::Place::after && state == State::reading && !is_json_space(byte);
  return byte_left ? push_structure(byte, events) : state;
}

CallReader::State CallReader::end_value(ToolEvents& events) {
  if (field_ == Field::name) {
    name_ = unquoted(text_).value_or("");
    if (std::find(names_.begin(), names_.end(), name_) == names_.end()) return State::not_a_call;
    tell(events);
  } else if (field_ == Field::arguments) {
    const bool was_streamed = streams();
    has_arguments_ = true;
    if (was_streamed) return State::reading;
    arguments_ = text_ == "null" ? "{}" : unquoted(text_).value_or(text_);
    if (announced_) add_event(events, ToolEvent::Kind::arguments, arguments_);
  }
  return State::reading;
}

CallReader::State CallReader::end_object(ToolEvents& events) {
  if (!announced_) return State::not_a_call;
  if (!has_arguments_) add_event(events, ToolEvent::Kind::arguments, "{}");
  return State::done;
}

void CallReader::tell(ToolEvents& events) {
  announced_ = true;
  add_event(events, ToolEvent::Kind::call, name_);
  add_event(events, ToolEvent::Kind::arguments, arguments_);
}

}  // namespace quire::serve
