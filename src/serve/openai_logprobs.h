// Log-probabilities of tokens in the two forms of OpenAI's interface. What JSON has no number for becomes -9999, as
// there.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "engine/request.h"
#include "serve/text_stream.h"
#include "text/tokenizer.h"

namespace quire::serve {

// The token that ended a text is no part of it, unless it is to be kept.
void drop_stop_token(Progress& progress, const TextRules& rules);

// Of chats: {token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]} for each token, with commas between, after
// those that are there. As text, which takes a tenth of the memory: there may be millions (logprob_budget.h).
void append_chat_logprobs(std::string& json, std::span<const engine::TokenLogprob> tokens,
                          const text::Tokenizer& tokenizer);

// Of completions: lists side by side, with the place of each token in the text, counted in characters.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const text::Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The prompt's first token has no probability: nothing stands before it.
  void add_prompt(std::span<const engine::TokenLogprob> tokens);
  void add(std::span<const engine::TokenLogprob> tokens);
  bool empty() const { return tokens_.empty(); }
  nlohmann::ordered_json take();  // all since the last time: {tokens, token_logprobs, top_logprobs, text_offset}

 private:
  void add_one(const engine::TokenLogprob& token, bool known);

  const text::Tokenizer& tokenizer_;
  const bool skip_special_;
  size_t offset_ = 0;
  nlohmann::ordered_json tokens_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json logprobs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json top_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json offsets_ = nlohmann::ordered_json::array();
};

}  // namespace quire::serve
