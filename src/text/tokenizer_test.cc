#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/utf8.h"
#include "text/byte_token.h"
#include "text/merges.h"
#include "text/utf8_stream.h"

namespace quire::text {
namespace {

using Ids = std::vector<int32_t>;

// Ids 0 to 255 are the bytes; then "he", "ll", "hell" and " hell" by merges; then <s>, </s> (special) and [TOOL].
Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.add(letters_of_bytes(std::string(1, static_cast<char>(byte))));
  for (const char* text : {"he", "ll", "hell", " hell"}) vocabulary.tokens.add(letters_of_bytes(text));
  vocabulary.types.assign(260, TokenType::normal);
  MergeReader merges(vocabulary.tokens, 4);
  for (const char* merge : {"h e", "l l", "he ll", "\u0120 hell"}) merges.add(merge);
  vocabulary.merges = merges.take();
  vocabulary.pre_tokenizer = {Split{" ?\\p{L}+|\\s+|."}};
  for (const char* text : {"<s>", "</s>", "[TOOL]"}) {
    const bool special = text[0] == '<';
    vocabulary.added.push_back({.id = vocabulary.tokens.add(text), .special = special});
    vocabulary.types.push_back(special ? TokenType::control : TokenType::user_defined);
  }
  vocabulary.mergeable.assign(260, true);
  vocabulary.mergeable.resize(263, false);
  vocabulary.bos = 260;
  vocabulary.eos = 261;
  vocabulary.prefix = {260};
  vocabulary.end_ids = {261};
  return vocabulary;
}

TEST(Tokenizer, MergesInsidePieces) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode("hello hell", {.add_special = false}), (Ids{258, 'o', 259}));
  EXPECT_EQ(tokenizer.encode("h", {}), (Ids{260, 'h'}));
  EXPECT_EQ(tokenizer.encode("", {}), (Ids{260}));
  EXPECT_EQ(tokenizer.encode("", {.add_special = false}), Ids{});
}

TEST(Tokenizer, SpecialsInTheTextOnlyWhenAsked) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode("a</s>[TOOL]", {.add_special = false, .parse_special = true}), (Ids{'a', 261, 262}));
  EXPECT_EQ(tokenizer.encode("a</s>[TOOL]", {.add_special = false, .parse_special = false}),
            (Ids{'a', '<', '/', 's', '>', 262}));
}

TEST(Tokenizer, BytesOfStrangersAreNeverSpecial) {
  const Tokenizer tokenizer(byte_vocabulary());
  const auto encode = [&](std::string_view text, std::vector<size_t> never) {
    return tokenizer.encode(text, {.add_special = false, .parse_special = true, .never_special = never});
  };
  const Ids plain{'<', '/', 's', '>'};
  EXPECT_EQ(encode("</s>a</s>", {0}), (Ids{'<', '/', 's', '>', 'a', 261}));
  EXPECT_EQ(encode("</s>a</s>", {5}), (Ids{261, 'a', '<', '/', 's', '>'}));
  EXPECT_EQ(encode("</s>", {3}), plain) << "the last byte counts";
  EXPECT_EQ(encode("a</s>", {0}), (Ids{'a', 261})) << "the byte before does not";
  EXPECT_EQ(encode("</s>a", {4}), (Ids{261, 'a'})) << "nor the one after";
  EXPECT_EQ(encode("[TOOL]", {0}), (Ids{262})) << "other added tokens are plain text anyway";
  EXPECT_EQ(encode("</</s>", {0}), (Ids{'<', '/', 261}));
}

TEST(Tokenizer, SuffixAndPrefix) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.suffix = {261};
  EXPECT_EQ(Tokenizer(std::move(vocabulary)).encode("a"), (Ids{260, 'a', 261}));
}

TEST(Tokenizer, DecodesAndSkips) {
  const Tokenizer tokenizer(byte_vocabulary());
  const Ids ids = {260, 258, 'o', 262, 261};
  EXPECT_EQ(tokenizer.decode(ids), "<s>hello[TOOL]</s>");
  EXPECT_EQ(tokenizer.decode(ids, true), "hello[TOOL]");
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, 0x82, 'x'}), "\uFFFDx");
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, SaysWhatTokensAre) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.size(), 263);
  EXPECT_EQ(tokenizer.piece(259), " hell");
  EXPECT_EQ(tokenizer.piece(0xE2), "\xE2");
  EXPECT_TRUE(tokenizer.is_special(260));
  EXPECT_FALSE(tokenizer.is_special(262));
  EXPECT_TRUE(tokenizer.is_end(261));
  EXPECT_FALSE(tokenizer.is_end(260));
  EXPECT_EQ(tokenizer.find(" hell"), 259);
  EXPECT_EQ(tokenizer.find("</s>"), 261);
  EXPECT_EQ(tokenizer.find("[TOOL]"), 262);
  EXPECT_EQ(tokenizer.find("nothing"), std::nullopt);
}

TEST(Tokenizer, IdsOutsideAreRefused) {
  const Tokenizer tokenizer(byte_vocabulary());
  expect_refused([&] { (void)tokenizer.piece(263); }, "token 263 is not one of the vocabulary's 263");
  expect_refused([&] { (void)tokenizer.decode(Ids{-1}); }, "token -1");
  expect_refused([&] { (void)tokenizer.decode(Ids{1 << 30}, true); }, "is not one of");
}

TEST(Tokenizer, VocabulariesThatDoNotFitTogetherAreRefused) {
  const auto refused = [](auto&& change, const std::string& part) {
    Vocabulary vocabulary = byte_vocabulary();
    change(vocabulary);
    expect_refused([&] { Tokenizer tokenizer(std::move(vocabulary)); }, part);
  };
  refused([](Vocabulary& v) { v.types.pop_back(); }, "types");
  refused([](Vocabulary& v) { v.mergeable.pop_back(); }, "whether merges give them");
  refused([](Vocabulary& v) { v.scores.resize(3); }, "scores");
  refused([](Vocabulary& v) { v.bos = 263; }, "special token 263");
  refused([](Vocabulary& v) { v.end_ids = {-1}; }, "special token -1");
  refused([](Vocabulary& v) { v.added.push_back({.id = 999}); }, "added token 999");
  refused([](Vocabulary& v) { v.merges.push_back({0, 0, 500}); }, "merged token 500");
  refused([](Vocabulary& v) { v = Vocabulary{}; }, "no tokens");
}

TEST(Tokenizer, BrokenUtf8IsEncodedAsItsReplacement) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode("a\xF0\x9Fz"), tokenizer.encode("a\uFFFDz"));
}

TEST(Tokenizer, AnyBytesEncodeAndComeBack) {
  const Tokenizer tokenizer(byte_vocabulary());
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 3 ? "he l\xE2\x82\xAC"[random() % 8] : random() % 256);
    const Ids ids = tokenizer.encode(bytes, {.add_special = false});
    ASSERT_EQ(tokenizer.decode(ids), repaired_utf8(bytes));
  }
}

TEST(Tokenizer, MovesWithItsParts) {
  Tokenizer first(byte_vocabulary());
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("hell"), (Ids{260, 258}));
}

// <unk> <s> </s>, a few bytes, then text; as sentencepiece makes them.
Vocabulary spm_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.kind = VocabularyKind::spm_bpe;
  const auto add = [&](const char* token, TokenType type, float score) {
    vocabulary.tokens.add(token);
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(score);
    vocabulary.mergeable.push_back(type == TokenType::normal);
  };
  add("<unk>", TokenType::unknown, 0);
  add("<s>", TokenType::control, 0);
  add("</s>", TokenType::control, 0);
  add("<0xE2>", TokenType::byte, 0);
  add("<0x82>", TokenType::byte, 0);
  add("<0xAC>", TokenType::byte, 0);
  float score = 0;
  for (const char* token : {"\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"}) add(token, TokenType::normal, score--);
  for (const int32_t id : {0, 1, 2}) vocabulary.added.push_back({.id = id, .special = true});
  vocabulary.unk = 0;
  vocabulary.byte_fallback = vocabulary.fuse_unknown = vocabulary.drops_first_space = true;
  vocabulary.normalizer = {Prepend{"\u2581"}, Replace{" ", "\u2581"}};
  vocabulary.prefix = {1};
  return vocabulary;
}

TEST(Tokenizer, SentencePieceStyle) {
  const Tokenizer tokenizer(spm_vocabulary());
  EXPECT_EQ(tokenizer.encode("ab a\u20AC"), (Ids{1, 11, 9, 3, 4, 5}));
  EXPECT_EQ(tokenizer.encode("x", {.add_special = false}), (Ids{6, 0}));
  // Each text between specials gets its space.
  EXPECT_EQ(tokenizer.encode("a</s>a", {.add_special = false, .parse_special = true}), (Ids{9, 2, 9}));
}

TEST(Tokenizer, SentencePieceStyleDecoding) {
  const Tokenizer tokenizer(spm_vocabulary());
  EXPECT_EQ(tokenizer.decode(Ids{9, 8, 9, 3, 4, 5}), "ab a\u20AC");
  EXPECT_EQ(tokenizer.decode(Ids{1, 9}), "<s> a");
  EXPECT_EQ(tokenizer.decode(Ids{1, 9}, true), "a");
  EXPECT_EQ(tokenizer.decode(Ids{6, 9}), " a");
  EXPECT_EQ(tokenizer.decode(Ids{9, 3, 4}), "a\uFFFD");
  EXPECT_EQ(tokenizer.piece(9), " a");
  EXPECT_EQ(tokenizer.find(" a"), 9);
}

TEST(Tokenizer, StreamedPiecesAreTheDecodedWhole) {
  std::mt19937 random(5);
  const Tokenizer tokenizers[] = {Tokenizer(spm_vocabulary()), Tokenizer(byte_vocabulary())};
  for (const Tokenizer& tokenizer : tokenizers)
    for (int round = 0; round < 2000; ++round) {
      Ids ids(random() % 10);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.size()));
      Utf8Stream stream(tokenizer.drops_first_space());
      std::string parts;
      for (const int32_t id : ids) parts += stream.push(tokenizer.piece(id));
      ASSERT_EQ(parts + stream.flush(), tokenizer.decode(ids));
    }
}

TEST(Tokenizer, NormalizedTokensAreFoundInNormalizedText) {
  Vocabulary vocabulary = byte_vocabulary();
  vocabulary.normalizer = {UnicodeForm::nfc};
  vocabulary.added.push_back({.id = vocabulary.tokens.add("e\u0301"), .normalized = true});
  vocabulary.added.push_back({.id = vocabulary.tokens.add("o\u0301"), .normalized = false});
  vocabulary.types.resize(265, TokenType::user_defined);
  vocabulary.mergeable.resize(265, false);
  const Tokenizer tokenizer(std::move(vocabulary));
  EXPECT_EQ(tokenizer.encode("\u00E9e\u0301", {.add_special = false}), (Ids{263, 263}));
  EXPECT_EQ(tokenizer.encode("o\u0301\u00F3", {.add_special = false}), (Ids{264, 0xC3, 0xB3}));
}

TEST(Tokenizer, LongTextsWithoutABreakTakeNoTime) {
  const Tokenizer tokenizer(byte_vocabulary());
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'l')).size(), (1u << 19) + 1);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, ' ')).size(), (1u << 20) + 1);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, '<')).size(), (1u << 20) + 1);
}

}  // namespace
}  // namespace quire::text
