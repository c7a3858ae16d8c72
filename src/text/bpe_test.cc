#include "text/bpe.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/merges.h"

namespace quire::text {
namespace {

// Tokens of plain text, and the merges of pairs of them.
Vocabulary ranked(std::initializer_list<const char*> tokens, std::initializer_list<const char*> merges) {
  Vocabulary vocabulary;
  for (const char* token : tokens) vocabulary.tokens.add(token);
  vocabulary.types.assign(tokens.size(), TokenType::normal);
  vocabulary.mergeable.assign(tokens.size(), true);
  MergeReader reader(vocabulary.tokens, merges.size());
  for (const char* merge : merges) reader.add(merge);
  vocabulary.merges = reader.take();
  return vocabulary;
}

struct Scored {
  const char* token;
  float score;
  TokenType type = TokenType::normal;
};
Vocabulary scored(std::initializer_list<Scored> tokens) {
  Vocabulary vocabulary;
  vocabulary.kind = VocabularyKind::spm_bpe;
  for (const Scored& each : tokens) {
    vocabulary.tokens.add(each.token);
    vocabulary.scores.push_back(each.score);
    vocabulary.types.push_back(each.type);
    vocabulary.mergeable.push_back(each.type == TokenType::normal);
    if (each.type == TokenType::unknown) vocabulary.unk = vocabulary.tokens.size() - 1;
  }
  return vocabulary;
}

// The tokens of a piece, with bars between them.
std::string encode(const Vocabulary& vocabulary, const std::string& piece) {
  Bpe::Symbols symbols;
  std::vector<int32_t> ids;
  Bpe(vocabulary).append_ids(piece, symbols, ids);
  std::string shown;
  for (const int32_t id : ids) shown += cat(shown.empty() ? "" : "|", vocabulary.tokens[id]);
  return shown;
}

TEST(Bpe, TheLowestRankMergesFirst) {
  EXPECT_EQ(encode(ranked({"a", "b", "c", "ab", "bc", "abc"}, {"b c", "a b"}), "abc"), "a|bc");
  EXPECT_EQ(encode(ranked({"a", "b", "c", "ab", "bc", "abc"}, {"a b", "b c"}), "abc"), "ab|c");
  EXPECT_EQ(encode(ranked({"a", "b", "c", "ab", "bc", "abc"}, {"b c", "a b", "a bc"}), "abcab"), "abc|ab");
}

TEST(Bpe, OfEqualRanksTheLeftmostMergesFirst) {
  EXPECT_EQ(encode(ranked({"a", "aa"}, {"a a"}), "aaaaa"), "aa|aa|a");
  EXPECT_EQ(encode(ranked({"a", "aa", "aaa"}, {"a a", "aa a"}), "aaaaa"), "aa|aaa");
}

TEST(Bpe, OfAMergeGivenTwiceTheLastCounts) {
  EXPECT_EQ(encode(ranked({"a", "b", "c", "ab", "bc"}, {"a b", "b c", "a b"}), "abc"), "a|bc");
}

TEST(Bpe, ATokenThatNoMergesReachIsNotUsed) {
  EXPECT_EQ(encode(ranked({"a", "b", "c", "abc"}, {}), "abc"), "a|b|c");
  Vocabulary whole = ranked({"a", "b", "c", "abc"}, {});
  whole.ignore_merges = true;
  EXPECT_EQ(encode(whole, "abc"), "abc");
  EXPECT_EQ(encode(whole, "abcc"), "a|b|c|c");
}

TEST(Bpe, TheHighestScoreMergesFirst) {
  EXPECT_EQ(encode(scored({{"a", 0}, {"b", 0}, {"c", 0}, {"ab", -2}, {"bc", -1}}), "abc"), "a|bc");
  EXPECT_EQ(encode(scored({{"a", 0}, {"b", 0}, {"c", 0}, {"ab", -1}, {"bc", -2}}), "abc"), "ab|c");
  EXPECT_EQ(encode(scored({{"\u00E9", 0}, {"a", 0}, {"\u00E9a", -1}}), "a\u00E9a"), "a|\u00E9a");
}

TEST(Bpe, OfEqualScoresTheLongerLeftPartMergesFirst) {
  // After x, yy and x: yy+x goes before x+yy, though that lies further left. So the ranked form of this vocabulary has
  // it.
  const Vocabulary vocabulary = scored({{"x", 0}, {"y", 0}, {"yy", -1}, {"xyy", -2}, {"yyx", -2}});
  EXPECT_EQ(encode(vocabulary, "xyyx"), "x|yyx");
}

TEST(Bpe, ControlTokensDoNotComeOutOfMerges) {
  EXPECT_EQ(encode(scored({{"<", 0}, {"s", 0}, {">", 0}, {"<s", -1}, {"<s>", 0, TokenType::control}}), "<s>"), "<s|>");
}

Vocabulary with_bytes() {
  Vocabulary vocabulary = scored({{"<unk>", 0, TokenType::unknown},
                                  {"<0xC3>", 0, TokenType::byte},
                                  {"<0xA9>", 0, TokenType::byte},
                                  {"a", 0},
                                  {"a\u00E9", -1}});
  vocabulary.byte_fallback = true;
  return vocabulary;
}

TEST(Bpe, CharactersFallBackToTheirBytes) {
  EXPECT_EQ(encode(with_bytes(), "\u00E9"), "<0xC3>|<0xA9>");
  // Its bytes do not merge, though the text of the two together is a token.
  EXPECT_EQ(encode(with_bytes(), "a\u00E9"), "a|<0xC3>|<0xA9>");
}

TEST(Bpe, WhatHasNoBytesIsUnknown) {
  Vocabulary vocabulary = with_bytes();
  EXPECT_EQ(encode(vocabulary, "\u20AC\u20ACa"), "<unk>|<unk>|a");
  vocabulary.fuse_unknown = true;
  EXPECT_EQ(encode(vocabulary, "\u20AC\u20ACa\u20AC"), "<unk>|a|<unk>");
  vocabulary.byte_fallback = false;
  EXPECT_EQ(encode(vocabulary, "\u00E9a"), "<unk>|a");
  vocabulary.unk.reset();
  EXPECT_EQ(encode(vocabulary, "\u00E9a"), "a");
}

// A quadratic merge would take hours.
TEST(Bpe, LongRunsTakeNoTime) {
  constexpr size_t kLength = 1 << 20;
  const Vocabulary by_rank = ranked({"a", "aa", "aaaa"}, {"a a", "aa aa"});
  const Vocabulary by_score = scored({{"a", 0}, {"aa", -1}, {"aaaa", -2}});
  for (const Vocabulary* vocabulary : {&by_rank, &by_score}) {
    Bpe::Symbols symbols;
    std::vector<int32_t> ids;
    Bpe(*vocabulary).append_ids(std::string(kLength, 'a'), symbols, ids);
    EXPECT_EQ(ids, std::vector<int32_t>(kLength / 4, 2));
  }
}

}  // namespace
}  // namespace quire::text
