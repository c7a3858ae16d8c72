#include "suggestion.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

const std::vector<std::string> kKnown = {"serve", "chat", "generate", "--port", "--max-tokens", "--model"};

TEST(NearestWord, ForgivesSlipsOfTheFinger) {
  EXPECT_EQ(nearest_word("serv", kKnown), "serve");
  EXPECT_EQ(nearest_word("gnerate", kKnown), "generate");
  EXPECT_EQ(nearest_word("generaet", kKnown), "generate");
  EXPECT_EQ(nearest_word("--prot", kKnown), "--port");
  EXPECT_EQ(nearest_word("--max_tokens", kKnown), "--max-tokens");
  EXPECT_EQ(nearest_word("--modle", kKnown), "--model");
}

TEST(NearestWord, DoesNotGuessWildly) {
  EXPECT_EQ(nearest_word("frobnicate", kKnown), "");
  EXPECT_EQ(nearest_word("", kKnown), "");
  EXPECT_EQ(nearest_word(std::string(1 << 20, 'x'), kKnown), "");
}

TEST(DidYouMean, IsPutBehindASentence) {
  EXPECT_EQ(did_you_mean("--prot", kKnown), "; did you mean --port?");
  EXPECT_EQ(did_you_mean("--frobnicate", kKnown), "");
}

}  // namespace
}  // namespace quire
