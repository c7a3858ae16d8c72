#include "serve/openai_logprobs.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/utf8.h"
#include "serve/json_text.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr double kImpossible = -9999;

double finite(float logprob) { return std::isfinite(logprob) ? logprob : kImpossible; }

// Models may have more rows than their vocabulary has tokens.
std::string_view piece_of(int32_t token, const text::Tokenizer& tokenizer) {
  return token >= 0 && token < tokenizer.size() ? tokenizer.piece(token) : std::string_view();
}

// Without its last brace.
void append_chat_entry(std::string& json, int32_t token, float logprob, const text::Tokenizer& tokenizer) {
  const std::string_view piece = piece_of(token, tokenizer);
  if (!json.empty() && json.back() == '}') json += ',';
  json.append(R"({"token":)").append(json_string(repaired_utf8(piece)));
  json.append(R"(,"logprob":)").append(std::isfinite(logprob) ? json_number(logprob) : json_number(kImpossible));
  json += R"(,"bytes":[)";
  for (const char byte : piece) {
    if (json.back() != '[') json += ',';
    json += std::to_string(static_cast<uint8_t>(byte));
  }
  json += ']';
}

// Characters that begin in these bytes: tokens may hold halves.
size_t begun_characters(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

}  // namespace

void drop_stop_token(Progress& progress, const TextRules& rules) {
  if (rules.keep_stop || !progress.end || progress.tokens.empty()) return;
  const auto* matched = std::get_if<int32_t>(&progress.end->matched);
  if (matched && progress.tokens.back().token == *matched) progress.tokens.pop_back();
}

void append_chat_logprobs(std::string& json, std::span<const engine::TokenLogprob> tokens,
                          const text::Tokenizer& tokenizer) {
  for (const engine::TokenLogprob& token : tokens) {
    append_chat_entry(json, token.token, token.logprob, tokenizer);
    json += R"(,"top_logprobs":[)";
    for (const auto& [other, logprob] : token.top) {
      append_chat_entry(json, other, logprob, tokenizer);
      json += '}';
    }
    json += "]}";
  }
}

void CompletionLogprobs::add_prompt(std::span<const engine::TokenLogprob> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) add_one(tokens[i], i > 0);
}

void CompletionLogprobs::add(std::span<const engine::TokenLogprob> tokens) {
  for (const engine::TokenLogprob& token : tokens) add_one(token, true);
}

void CompletionLogprobs::add_one(const engine::TokenLogprob& token, bool known) {
  const std::string_view piece = piece_of(token.token, tokenizer_);
  const std::string text = repaired_utf8(piece);
  tokens_.push_back(text);
  offsets_.push_back(offset_);
  const bool is_shown = !(skip_special_ && token.token < tokenizer_.size() && tokenizer_.is_special(token.token));
  if (is_shown) offset_ += begun_characters(piece);
  logprobs_.push_back(known ? ordered_json(finite(token.logprob)) : ordered_json());
  ordered_json top = known ? ordered_json::object() : ordered_json();
  if (known) {
    for (const auto& [other, logprob] : token.top)
      top.emplace(repaired_utf8(piece_of(other, tokenizer_)), finite(logprob));  // of equal texts the likelier
    top.emplace(text, finite(token.logprob));
  }
  top_.push_back(std::move(top));
}

ordered_json CompletionLogprobs::take() {
  const auto taken = [](ordered_json& list) { return std::exchange(list, ordered_json::array()); };
  return {{"tokens", taken(tokens_)},
          {"token_logprobs", taken(logprobs_)},
          {"top_logprobs", taken(top_)},
          {"text_offset", taken(offsets_)}};
}

}  // namespace quire::serve
