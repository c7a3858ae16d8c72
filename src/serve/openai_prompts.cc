#include "serve/openai_prompts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/openai_request.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

int32_t token_of(const ordered_json& value, const std::string& path, int32_t vocabulary) {
  const bool fits = value.is_number_integer() && value >= 0 && value < vocabulary;
  if (!fits) refuse(path, cat("expected a token from 0 to ", vocabulary - 1, ", got ", in_quotes(value.dump(), 40)));
  return value.get<int32_t>();
}

Prompt from_tokens(const ordered_json& tokens, const std::string& path, const Service& service) {
  if (tokens.empty()) refuse(path, "there are no tokens");
  Prompt prompt;
  prompt.ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    prompt.ids.push_back(token_of(tokens[i], cat(path, "[", i, "]"), service.tokenizer().size()));
  return prompt;
}

Prompt from_string(const ordered_json& text, const std::string& path, bool parse_special, const Service& service) {
  const auto& given = text.get_ref<const std::string&>();
  return {encode_text(given, service, parse_special, path), given};
}

Prompt from_entry(const ordered_json& entry, const std::string& path, bool parse_special, const Service& service) {
  if (entry.is_string()) return from_string(entry, path, parse_special, service);
  if (entry.is_array()) return from_tokens(entry, path, service);
  refuse(path, "expected a string or an array of tokens");
}

}  // namespace

std::vector<Prompt> read_prompts(const ordered_json& given, const PromptRules& rules, const Service& service) {
  const auto& [field, most, parse_special] = rules;
  std::vector<Prompt> prompts;
  if (given.is_string()) {
    prompts.push_back(from_string(given, field, parse_special, service));
    return prompts;
  }
  if (!given.is_array() || given.empty())
    refuse(field, "expected a string, an array of strings, of tokens or of arrays of tokens");
  if (given[0].is_number()) {
    prompts.push_back(from_tokens(given, field, service));
    return prompts;
  }
  if (given.size() > most) refuse(field, cat("expected at most ", most, " texts, got ", given.size()));
  for (size_t i = 0; i < given.size(); ++i)
    prompts.push_back(from_entry(given[i], cat(field, "[", i, "]"), parse_special, service));
  return prompts;
}

}  // namespace quire::serve
