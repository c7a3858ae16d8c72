// For tests: small vocabularies, walks along masks, and a judge of JSON schemas that shares nothing with the rules.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/token_mask.h"
#include "grammar/compiler.h"

namespace quire::grammar {

// Every byte is the token of its value; then the end, a token that no text has, and some longer pieces.
inline constexpr int32_t kEndId = 256, kNoTextId = 257;
Tokens byte_tokens();
const Compiler& byte_compiler();  // over these tokens

// Draws allowed tokens until the end, or until `most` were drawn; the text without the end. Now and then tries a token
// that is not allowed, which must be refused.
struct Walk {
  std::string text;
  bool ended;
};
Walk walk(engine::TokenMask& mask, const Tokens& tokens, std::mt19937& random, int most = 2000);

bool allows(const uint32_t* mask, int32_t token);
// Whether the mask lets these bytes come one after the other, and then the end.
bool takes(const Compiler& compiler, const Source& source, const std::string& text);

// Throws std::runtime_error with a reason when the value does not satisfy the schema. Knows what the tests use.
void judge(const nlohmann::json& value, const nlohmann::json& schema, const nlohmann::json& root);

}  // namespace quire::grammar
