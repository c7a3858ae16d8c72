#include "text/end_tokens.h"

#include <algorithm>
#include <string_view>

namespace quire::text {
namespace {

constexpr std::string_view kEnds[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOS]",
    "[EOT]",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
};

// Where a reply has several messages, <|end|> ends only one of them, and other tokens end the reply.
constexpr std::string_view kEndOfMessage = "<|end|>";
constexpr std::string_view kEndsOfReply[] = {"<|return|>", "<|flush|>"};

bool is_added(const Vocabulary& vocabulary, std::string_view text) {
  return std::any_of(vocabulary.added.begin(), vocabulary.added.end(),
                     [&](const AddedToken& token) { return vocabulary.tokens[token.id] == text; });
}

bool ends_something(std::string_view text, bool has_ends_of_reply) {
  if (has_ends_of_reply && text == kEndOfMessage) return false;
  return std::find(std::begin(kEnds), std::end(kEnds), text) != std::end(kEnds);
}

}  // namespace

std::vector<int32_t> end_tokens(const Vocabulary& vocabulary, std::vector<int32_t> named) {
  const bool has_ends_of_reply = std::any_of(std::begin(kEndsOfReply), std::end(kEndsOfReply),
                                             [&](std::string_view end) { return is_added(vocabulary, end); });
  for (const AddedToken& token : vocabulary.added)
    if (ends_something(vocabulary.tokens[token.id], has_ends_of_reply)) named.push_back(token.id);
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  return named;
}

}  // namespace quire::text
