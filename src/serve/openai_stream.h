// The parts of a stream in OpenAI's form: server-sent events, each a chunk of the answer as JSON. Chunks are put
// together as text around the few bytes that differ, since there is one for every token of every client.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "serve/service.h"
#include "serve/text_stream.h"

namespace quire::serve {

struct AnswerHead {
  std::string id;
  std::string object;  // "chat.completion.chunk", "text_completion"
  std::string model;
  int64_t created;  // seconds since 1970

  nlohmann::ordered_json json() const;
};

AnswerHead new_head(std::string id, std::string object, std::string model);  // created now

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the completion's

  nlohmann::ordered_json json() const;
};

class ChunkWriter {
 public:
  ChunkWriter(const AnswerHead& head, bool with_usage);

  // A chunk of one choice. `content` is JSON: the member that differs, "delta":{...} or "text":"...". logprobs: JSON.
  void append(std::string& part, size_t index, std::string_view content, std::string_view logprobs = "null") const;
  // The last one of a choice. more: further members, each after a comma.
  void append_last(std::string& part, size_t index, std::string_view content, std::string_view logprobs,
                   std::string_view finish_reason, std::string_view more) const;
  void append_usage(std::string& part, const Usage& usage) const;  // a chunk of no choice

 private:
  std::string head_;  // up to the choices
  std::string tail_;  // after them
  bool with_usage_;
};

// stop, length, abort.
std::string_view finish_reason(const End& end);
std::string matched_stop(const End& end);  // JSON: the text, the token or null

}  // namespace quire::serve
