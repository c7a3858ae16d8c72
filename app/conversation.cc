#include "conversation.h"

#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace quire {

using nlohmann::ordered_json;

Conversation::Conversation(const Session& session, std::string system)
    : session_(session), system_(std::move(system)) {}

void Conversation::set_system(std::string text) { system_ = std::move(text); }

void Conversation::reset() { turns_.clear(); }

Conversation::Prompt Conversation::ask(const std::string& message, int32_t context, int32_t for_answer) {
  const int32_t most = context - for_answer;
  const ordered_json before = turns_;
  add("user", repaired_utf8(message));
  Prompt prompt{encode(), 0};
  while (prompt.tokens.size() > static_cast<size_t>(most) && turns_.size() > 2) {
    turns_.erase(turns_.begin(), turns_.begin() + 2);
    ++prompt.dropped;
    prompt.tokens = encode();
  }
  if (prompt.tokens.size() > static_cast<size_t>(most)) {
    turns_ = before;
    throw CheckError(cat("this message takes ", prompt.tokens.size(), " tokens, and there is room for ", most,
                         ": of the context of ", context, ", ", for_answer,
                         " are reserved for the answer (--context-length, --max-tokens)"));
  }
  return prompt;
}

void Conversation::answered(const Completion& completion) {
  add("assistant", completion.text);
  const bool ended = !completion.tokens.empty() && session_.tokenizer.is_end(completion.tokens.back());
  if (!ended) {  // the rest of its text follows no special token, and tokens depend on what they follow
    seen_text_.clear();
    seen_tokens_.clear();
    return;
  }
  for (const int32_t token : completion.tokens) seen_text_ += session_.tokenizer.piece(token);
  seen_tokens_.insert(seen_tokens_.end(), completion.tokens.begin(), completion.tokens.end());
}

ordered_json Conversation::messages() const {
  ordered_json messages = ordered_json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const ordered_json& turn : turns_) messages.push_back(turn);
  return messages;
}

void Conversation::add(const char* role, const std::string& text) {
  turns_.push_back({{"role", role}, {"content", text}});
}

std::vector<int32_t> Conversation::encode() {
  const std::string text = session_.render(messages());
  const bool continues = text.starts_with(seen_text_);
  if (!continues) seen_tokens_.clear();
  const std::string_view fresh = std::string_view(text).substr(continues ? seen_text_.size() : 0);
  for (const int32_t token : session_.tokenizer.encode(fresh, {.add_special = false, .parse_special = true}))
    seen_tokens_.push_back(token);
  seen_text_ = text;
  return seen_tokens_;
}

}  // namespace quire
