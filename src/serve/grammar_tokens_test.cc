#include "serve/grammar_tokens.h"

#include <gtest/gtest.h>

#include "serve/testing_service.h"

namespace quire::serve {
namespace {

TEST(GrammarTokens, AreThePiecesOfTextsAlone) {
  const text::Tokenizer tokenizer(testing::tiny_vocabulary());
  const grammar::Tokens tokens = grammar_tokens(tokenizer, testing::kVocabulary + 5);
  ASSERT_EQ(tokens.pieces.size(), testing::kVocabulary + 5u);
  EXPECT_EQ(tokens.pieces['a'], "a");
  EXPECT_EQ(tokens.pieces[0xE2], "\xE2");
  EXPECT_EQ(tokens.pieces[testing::kBegin], "");
  EXPECT_EQ(tokens.pieces[testing::kEnd], "");
  EXPECT_EQ(tokens.pieces[testing::kVocabulary - 1], "w319");
  EXPECT_EQ(tokens.pieces[testing::kVocabulary], "");
  EXPECT_EQ(tokens.end_ids, std::vector<int32_t>{testing::kEnd});
}

}  // namespace
}  // namespace quire::serve
