// Texts as callers of OpenAI's interface give them, in a prompt or as input of an embedding: a string, an array of
// strings, an array of tokens, or an array of arrays of tokens.
//
// Errors   ApiError 400 that names the field and the entry: nothing at all, tokens outside the vocabulary, too many
//          entries.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/service.h"

namespace quire::serve {

struct Prompt {
  std::vector<int32_t> ids;
  std::optional<std::string> text;  // as it was given; none when tokens were
};

struct PromptRules {
  std::string field;   // that it is in
  size_t most;         // texts
  bool parse_special;  // special tokens that strings spell out are meant
};
std::vector<Prompt> read_prompts(const nlohmann::ordered_json& given, const PromptRules& rules, const Service& service);

}  // namespace quire::serve
