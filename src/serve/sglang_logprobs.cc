#include "serve/sglang_logprobs.h"

#include "serve/json_text.h"

namespace quire::serve {

void LogprobLists::add_prompt(std::span<const engine::TokenLogprob> tokens) {
  for (const engine::TokenLogprob& token : tokens) add_one(prompt_, token, !prompt_.tokens.empty());
}

void LogprobLists::add(std::span<const engine::TokenLogprob> tokens) {
  for (const engine::TokenLogprob& token : tokens) add_one(output_, token, true);
}

void LogprobLists::add_one(Lists& lists, const engine::TokenLogprob& token, bool known) {
  if (!rules_.wanted) return;
  add_entry(lists.tokens, token.token, token.logprob, known);
  if (rules_.top) add_entries(lists.top, token.top, known);
  if (rules_.ids) add_entries(lists.ids, token.wanted, known);
}

void LogprobLists::add_entry(std::string& json, int32_t token, float logprob, bool known) {
  if (!json.empty() && json.back() != '[') json += ',';
  json += '[';
  json += known ? json_number(logprob) : "null";
  json += ',' + std::to_string(token) + ',';
  json += rules_.texts ? json_string(tokenizer_.decode({&token, 1})) : "null";
  json += ']';
}

void LogprobLists::add_entries(std::string& json, std::span<const std::pair<int32_t, float>> entries, bool known) {
  if (!json.empty()) json += ',';
  if (!known) {
    json += "null";
    return;
  }
  json += '[';
  for (const auto& [token, logprob] : entries) add_entry(json, token, logprob, true);
  json += ']';
}

void LogprobLists::append_to(std::string& json) const {
  if (!rules_.wanted) return;
  const auto members = [&](const char* of, const Lists& lists) {
    const auto member = [&](const char* name, const std::string& entries) {
      json.append("\"").append(of).append(name).append("\":[").append(entries).append("],");
    };
    member("_token_logprobs", lists.tokens);
    if (rules_.top) member("_top_logprobs", lists.top);
    if (rules_.ids) member("_token_ids_logprobs", lists.ids);
  };
  if (!prompt_told_) members("input", prompt_);
  members("output", output_);
}

void LogprobLists::forget_prompt() {
  prompt_told_ = true;
  prompt_ = {};
}

}  // namespace quire::serve
