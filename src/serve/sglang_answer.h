// One text of an answer to /generate, as JSON that grows with it: what is escaped once is not touched again, so each
// part of a cumulative stream costs a copy and no more. The prompt's logprobs, which do not grow, come with the first
// part of a stream alone.
#pragma once
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "serve/sglang_logprobs.h"
#include "serve/text_stream.h"

namespace quire::serve {

class GenerateAnswer {
 public:
  GenerateAnswer(const text::Tokenizer& tokenizer, std::string rid, LogprobRules logprobs);

  void on_progress(const Progress& progress);
  const std::optional<End>& end() const { return end_; }
  std::string json(std::optional<size_t> index = {}) const;  // all so far; the index is that in a list of texts
  std::string part(std::optional<size_t> index);             // the same, as the next part of a stream

 private:
  std::string meta_info() const;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const std::string rid_;
  LogprobLists logprobs_;
  std::string text_;  // escaped
  std::string ids_;   // with commas between them
  int32_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_ = 0;
  engine::Speculated speculated_;
  std::optional<End> end_;
  double seconds_ = 0;  // to the end
};

}  // namespace quire::serve
