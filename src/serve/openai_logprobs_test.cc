#include "serve/openai_logprobs.h"

#include <gtest/gtest.h>

#include <limits>

#include "serve/testing_service.h"

namespace quire::serve {
namespace {

using engine::TokenLogprob;
using nlohmann::ordered_json;
using TokenLogprobs = std::vector<TokenLogprob>;

class Logprobs : public ::testing::Test {
 protected:
  const text::Tokenizer tokenizer{testing::tiny_vocabulary()};
};

TEST_F(Logprobs, OfChats) {
  const TokenLogprobs tokens = {
      {.token = 'a', .logprob = -0.5f, .top = {{'a', -0.5f}, {0xC3, -1.5f}}},
      {.token = testing::kVocabulary + 1, .logprob = -std::numeric_limits<float>::infinity()}};
  std::string entries;
  for (const TokenLogprob& token : tokens) append_chat_logprobs(entries, {&token, 1}, tokenizer);
  EXPECT_EQ(ordered_json::parse("[" + entries + "]"), ordered_json::parse(R"([
      {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
          {"token": "a", "logprob": -0.5, "bytes": [97]},
          {"token": "\ufffd", "logprob": -1.5, "bytes": [195]}]},
      {"token": "", "logprob": -9999.0, "bytes": [], "top_logprobs": []}])"));
}

TEST_F(Logprobs, OfCompletions) {
  CompletionLogprobs logprobs(tokenizer, /*skip_special=*/true);
  EXPECT_TRUE(logprobs.empty());
  logprobs.add_prompt(TokenLogprobs{{.token = testing::kBegin}, {.token = 'x', .logprob = -2, .top = {{'y', -1}}}});
  EXPECT_EQ(logprobs.take(), ordered_json::parse(R"({
      "tokens": ["<s>", "x"], "token_logprobs": [null, -2.0], "top_logprobs": [null, {"y": -1.0, "x": -2.0}],
      "text_offset": [0, 0]})"));
  // An o with dots in two halves, and the letter after it.
  logprobs.add(
      TokenLogprobs{{.token = 0xC3, .logprob = -1}, {.token = 0xB6, .logprob = -1}, {.token = 'z', .logprob = -1}});
  const ordered_json rest = logprobs.take();
  EXPECT_EQ(rest["text_offset"], (ordered_json{1, 2, 2}));
  EXPECT_EQ(rest["tokens"][2], "z");
  EXPECT_TRUE(logprobs.empty());
}

TEST_F(Logprobs, TheTokenThatEndsATextIsNoPartOfIt) {
  const auto tokens_left = [](const Progress& given, const TextRules& rules) {
    Progress progress = given;
    drop_stop_token(progress, rules);
    return progress.tokens.size();
  };
  Progress progress{.tokens = {{.token = 'a'}, {.token = testing::kEnd}}};
  EXPECT_EQ(tokens_left(progress, {}), 2u);
  progress.end = End{EndReason::stop, testing::kEnd};
  EXPECT_EQ(tokens_left(progress, {}), 1u);
  EXPECT_EQ(tokens_left(progress, {.keep_stop = true}), 2u);
  progress.end = End{EndReason::stop, std::string("a")};
  EXPECT_EQ(tokens_left(progress, {}), 2u);
}

}  // namespace
}  // namespace quire::serve
