#include "text/end_tokens.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace quire::text {
namespace {

Vocabulary with_added(std::initializer_list<const char*> texts) {
  Vocabulary vocabulary;
  for (const char* text : texts) vocabulary.added.push_back({.id = vocabulary.tokens.add(text), .special = true});
  return vocabulary;
}

TEST(EndTokens, NamedAndWellKnownOnce) {
  const Vocabulary vocabulary = with_added({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  EXPECT_EQ(end_tokens(vocabulary, {2}), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(end_tokens(vocabulary, {1, 2}), (std::vector<int32_t>{0, 1, 2}));
}

TEST(EndTokens, PlainTokensWithSuchNamesDoNotCount) {
  Vocabulary vocabulary;
  vocabulary.tokens.add("<|im_end|>");
  EXPECT_TRUE(end_tokens(vocabulary, {}).empty());
}

TEST(EndTokens, TheEndOfAMessageIsNotTheEndOfAReplyOfSeveral) {
  EXPECT_EQ(end_tokens(with_added({"<|end|>"}), {}), (std::vector<int32_t>{0}));
  EXPECT_EQ(end_tokens(with_added({"<|end|>", "<|return|>", "<|call|>"}), {}), (std::vector<int32_t>{1, 2}));
}

}  // namespace
}  // namespace quire::text
