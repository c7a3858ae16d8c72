#include "serve/openai_chat_choice.h"

#include <utility>

#include "base/check.h"
#include "serve/json_text.h"
#include "serve/openai_logprobs.h"

namespace quire::serve {

using nlohmann::ordered_json;

ChatChoice::ChatChoice(size_t index, Terms terms, std::unique_ptr<ToolParser> parser)
    : index_(index), terms_(std::move(terms)), parser_(std::move(parser)) {
  if (terms_.reasoning == Reasoning::none) return;
  reasoning_.emplace(terms_.reasoning);
  reasoning_end_ = terms_.tokenizer.find(kReasoningEnd);
}

void ChatChoice::take_logprobs(Progress& progress) {
  if (!terms_.logprobs) return;
  drop_stop_token(progress, terms_.rules);
  append_chat_logprobs(logprobs_, progress.tokens, terms_.tokenizer);
}

// Where the tag is a token, as it is for all who think, the count is exact.
void ChatChoice::count_reasoning(const Progress& progress) {
  for (const engine::TokenLogprob& one : progress.tokens) {
    if (!reasoning_end_ || reasoning_counted_) return;
    ++reasoning_tokens_;
    reasoning_counted_ = one.token == *reasoning_end_;
  }
}

// What is left of the text.
std::string ChatChoice::split_reasoning(Progress& progress, ToolEvents& events) {
  if (!reasoning_) return std::move(progress.text);
  count_reasoning(progress);
  ReasoningParser::Parts parts = reasoning_->push(progress.text);
  if (progress.end) {
    const ReasoningParser::Parts last = reasoning_->finish();
    parts.reasoning += last.reasoning;
    parts.content += last.content;
  }
  unsent_reasoning_ += parts.reasoning;
  if (terms_.stream_reasoning || reasoning_->is_over() || progress.end)
    add_event(events, ToolEvent::Kind::reasoning, std::exchange(unsent_reasoning_, {}));
  return std::move(parts.content);
}

ToolEvents ChatChoice::events_of(Progress& progress) {
  ToolEvents events;
  const std::string text = split_reasoning(progress, events);
  if (!parser_) {
    add_event(events, ToolEvent::Kind::content, text);
    return events;
  }
  for (const ToolEvent& event : parser_->push(text)) add_event(events, event.kind, event.text);
  if (!progress.end) return events;
  for (const ToolEvent& event : parser_->finish()) add_event(events, event.kind, event.text);
  return events;
}

std::string_view ChatChoice::reason(const End& end) const {
  return !calls_.empty() && end.reason == EndReason::stop ? "tool_calls" : finish_reason(end);
}

// --- a stream's chunks

void ChatChoice::stream(Progress& progress, const ChunkWriter& chunks, std::string& part) {
  take_logprobs(progress);
  if (!std::exchange(begun_, true)) chunks.append(part, index_, R"("delta":{"role":"assistant","content":""})");
  for (const ToolEvent& event : events_of(progress)) append_event(event, chunks, part);
  if (!progress.end) return;
  chunks.append_last(part, index_, R"("delta":{})", unsent_logprobs(), cat("\"", reason(*progress.end), "\""),
                     cat(R"(,"matched_stop":)", matched_stop(*progress.end)));
}

std::string ChatChoice::unsent_logprobs() {
  if (logprobs_.empty()) return "null";
  std::string json = logprobs_json();
  logprobs_.clear();
  return json;
}

std::string ChatChoice::logprobs_json() const { return cat(R"({"content":[)", logprobs_, R"(],"refusal":null})"); }

void ChatChoice::append_event(const ToolEvent& event, const ChunkWriter& chunks, std::string& part) {
  if (event.kind == ToolEvent::Kind::reasoning) return append_text("reasoning_content", event.text, chunks, part);
  if (event.kind == ToolEvent::Kind::content) return append_text("content", event.text, chunks, part);
  if (event.kind == ToolEvent::Kind::call) calls_.push_back({terms_.new_call_id(), event.text});
  std::string delta = cat(R"("delta":{"tool_calls":[{"index":)", calls_.size() - 1);
  if (event.kind == ToolEvent::Kind::call)
    delta += cat(R"(,"id":)", json_string(calls_.back().id), R"(,"type":"function","function":{"name":)",
                 json_string(event.text), R"(,"arguments":""}}]})");
  else
    delta += cat(R"(,"function":{"arguments":)", json_string(event.text), "}}]}");
  chunks.append(part, index_, delta, unsent_logprobs());
}

void ChatChoice::append_text(std::string_view name, std::string_view text, const ChunkWriter& chunks,
                             std::string& part) {
  std::string delta = cat(R"("delta":{")", name, R"(":")");
  append_escaped(delta, text);
  chunks.append(part, index_, delta.append("\"}"), unsent_logprobs());
}

// --- in one piece

void ChatChoice::collect(Progress& progress) {
  take_logprobs(progress);
  for (const ToolEvent& event : events_of(progress)) collect_event(event);
  end_ = progress.end;
}

void ChatChoice::collect_event(const ToolEvent& event) {
  switch (event.kind) {
    case ToolEvent::Kind::reasoning:
      reasoning_text_ += event.text;
      return;
    case ToolEvent::Kind::content:
      content_ += event.text;
      return;
    case ToolEvent::Kind::call:
      calls_.push_back({terms_.new_call_id(), event.text});
      return;
    case ToolEvent::Kind::arguments:
      calls_.back().arguments += event.text;
      return;
  }
}

ordered_json ChatChoice::message() const {
  ordered_json message = {{"role", "assistant"}, {"content", content_}, {"refusal", nullptr}};
  if (!reasoning_text_.empty()) message["reasoning_content"] = reasoning_text_;
  if (calls_.empty()) return message;
  if (content_.empty()) message["content"] = nullptr;
  for (const ToolCall& call : calls_)
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return message;
}

std::string ChatChoice::json() const {
  return cat(R"({"index":)", index_, R"(,"message":)", dumped(message()), R"(,"logprobs":)",
             terms_.logprobs ? logprobs_json() : "null", R"(,"finish_reason":")", reason(*end_), R"(","matched_stop":)",
             matched_stop(*end_), "}");
}

}  // namespace quire::serve
