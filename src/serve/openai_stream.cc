#include "serve/openai_stream.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "base/check.h"
#include "serve/json_text.h"

namespace quire::serve {

using nlohmann::ordered_json;

ordered_json AnswerHead::json() const {
  return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
}

AnswerHead new_head(std::string id, std::string object, std::string model) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {std::move(id), std::move(object), std::move(model),
          std::chrono::duration_cast<std::chrono::seconds>(now).count()};
}

ordered_json Usage::json() const {
  ordered_json json = {{"prompt_tokens", prompt_tokens},
                       {"completion_tokens", completion_tokens},
                       {"total_tokens", prompt_tokens + completion_tokens},
                       {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
  if (reasoning_tokens > 0) json["completion_tokens_details"] = {{"reasoning_tokens", reasoning_tokens}};
  return json;
}

ChunkWriter::ChunkWriter(const AnswerHead& head, bool with_usage) : with_usage_(with_usage) {
  head_ = "data: " + dumped(head.json());
  head_.pop_back();
  head_ += ",\"choices\":[";
  tail_ = with_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
}

void ChunkWriter::append(std::string& part, size_t index, std::string_view content, std::string_view logprobs) const {
  append_last(part, index, content, logprobs, "null", "");
}

void ChunkWriter::append_last(std::string& part, size_t index, std::string_view content, std::string_view logprobs,
                              std::string_view finish_reason, std::string_view more) const {
  part.append(head_).append("{\"index\":").append(std::to_string(index)).append(",").append(content);
  part.append(",\"logprobs\":").append(logprobs).append(",\"finish_reason\":").append(finish_reason).append(more);
  part.append("}").append(tail_);
}

void ChunkWriter::append_usage(std::string& part, const Usage& usage) const {
  if (!with_usage_) return;
  part.append(head_).append("],\"usage\":").append(dumped(usage.json())).append("}\n\n");
}

std::string_view finish_reason(const End& end) {
  switch (end.reason) {
    case EndReason::stop:
      return "stop";
    case EndReason::length:
      return "length";
    default:
      return "abort";
  }
}

std::string matched_stop(const End& end) {
  if (const auto* token = std::get_if<int32_t>(&end.matched)) return std::to_string(*token);
  if (const auto* text = std::get_if<std::string>(&end.matched)) return json_string(*text);
  return "null";
}

}  // namespace quire::serve
