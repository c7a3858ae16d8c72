// One choice of a chat's answer: reasoning, content, tool calls and logprobs out of the progress of its job, as chunks
// of a stream or in one piece. Reasoning is split off first; calls are looked for in what is left.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai_stream.h"
#include "serve/reasoning_parser.h"
#include "serve/text_stream.h"
#include "serve/tool_parser.h"
#include "text/tokenizer.h"

namespace quire::serve {

class ChatChoice {
 public:
  struct Terms {
    const text::Tokenizer& tokenizer;  // outlives the choice
    TextRules rules = {};
    bool logprobs = false;
    std::function<std::string()> new_call_id;
    Reasoning reasoning = Reasoning::none;
    bool stream_reasoning = true;  // false: in one piece, once it is over
  };
  // parser: null when all text is content.
  ChatChoice(size_t index, Terms terms, std::unique_ptr<ToolParser> parser);

  // Either of the two for all progress of the job.
  void stream(Progress& progress, const ChunkWriter& chunks, std::string& part);
  void collect(Progress& progress);
  std::string json() const;  // what was collected, after the end
  int64_t reasoning_tokens() const { return reasoning_ && reasoning_->began() ? reasoning_tokens_ : 0; }

 private:
  struct ToolCall {
    std::string id, name, arguments = {};
  };
  void take_logprobs(Progress& progress);
  void count_reasoning(const Progress& progress);
  std::string split_reasoning(Progress& progress, ToolEvents& events);
  ToolEvents events_of(Progress& progress);
  void append_event(const ToolEvent& event, const ChunkWriter& chunks, std::string& part);
  void append_text(std::string_view name, std::string_view text, const ChunkWriter& chunks, std::string& part);
  void collect_event(const ToolEvent& event);
  std::string unsent_logprobs();
  std::string logprobs_json() const;
  std::string_view reason(const End& end) const;
  nlohmann::ordered_json message() const;

  const size_t index_;
  const Terms terms_;
  const std::unique_ptr<ToolParser> parser_;
  std::optional<ReasoningParser> reasoning_;
  std::optional<int32_t> reasoning_end_;  // the token that is its last
  std::string unsent_reasoning_;          // in streams that have it in one piece
  int64_t reasoning_tokens_ = 0;          // up to the tag that ends it
  bool reasoning_counted_ = false;
  std::string logprobs_;                  // JSON, with commas between; in streams: not sent yet
  std::string reasoning_text_, content_;  // not in streams
  std::vector<ToolCall> calls_;           // in streams without their arguments
  std::optional<End> end_;
  bool begun_ = false;  // the stream
};

}  // namespace quire::serve
