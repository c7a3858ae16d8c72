// The logprobs of one text as SGLang writes them, as JSON that grows with the text.
//
//   "output_token_logprobs":   [[-0.25, 1042, null], ...]       logprob, token, and its text if that was asked for
//   "output_top_logprobs":     [[[-0.25, 1042, null], ...], ...]     the likeliest, one list for each token
//   "output_token_ids_logprobs"   the same for the tokens that were asked for
//
// and the three with "input": of the prompt, from where the caller said; the first of them has none, since SGLang
// counts only what follows.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace quire::serve {

struct LogprobRules {
  bool wanted = false;
  bool top = false;
  bool ids = false;
  bool texts = false;
};

class LogprobLists {
 public:
  LogprobLists(const text::Tokenizer& tokenizer, LogprobRules rules) : tokenizer_(tokenizer), rules_(rules) {}

  void add_prompt(std::span<const engine::TokenLogprob> tokens);
  void add(std::span<const engine::TokenLogprob> tokens);
  void append_to(std::string& json) const;  // members of an object, each with a comma after it; nothing if not wanted
  void forget_prompt();                     // from now on without the members of the prompt

 private:
  struct Lists {  // the entries with commas between them
    std::string tokens = {}, top = {}, ids = {};
  };
  void add_one(Lists& lists, const engine::TokenLogprob& token, bool known);
  void add_entry(std::string& json, int32_t token, float logprob, bool known);
  void add_entries(std::string& json, std::span<const std::pair<int32_t, float>> entries, bool known);

  const text::Tokenizer& tokenizer_;
  LogprobRules rules_;
  Lists prompt_, output_;
  bool prompt_told_ = false;
};

}  // namespace quire::serve
