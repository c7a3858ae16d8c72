#include "grammar/compiler.h"

#include <gtest/gtest.h>

#include <ctime>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "grammar/compiled.h"
#include "grammar/testing.h"

namespace quire::grammar {
namespace {

std::string error_of(const Compiler& compiler, const Source& source) {
  try {
    compiler.compile(source);
  } catch (const CheckError& error) {
    return error.what();
  }
  return "";
}

TEST(Compiler, AnyJsonObjectParses) {
  const Tokens tokens = byte_tokens();
  const auto compiled = byte_compiler().compile({Kind::json});
  std::mt19937 random(1);
  int ended = 0;
  for (int i = 0; i < 40; ++i) {
    const Walk walked = walk(*byte_compiler().mask(compiled), tokens, random);
    if (!walked.ended) continue;
    ++ended;
    ASSERT_TRUE(nlohmann::json::accept(walked.text)) << walked.text;
    ASSERT_TRUE(nlohmann::json::parse(walked.text).is_object()) << walked.text;
  }
  EXPECT_GE(ended, 20);
}

TEST(Compiler, JsonIsTakenAsPeopleWriteIt) {
  const Source any_json{Kind::json};
  for (const char* text : {R"({})", R"({"a":1})", R"({"a": [1, 2.5e-3, true, null, "x\n\u00e9\ud83d\ude00"], "b": {}})",
                           "{\n  \"a\": [\n    1,\n    2\n  ]\n}"}) {
    EXPECT_TRUE(takes(byte_compiler(), any_json, text)) << text;
  }
  for (const char* text :
       {"[]", "1", " {}", "{} ", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":\"\\ud83d\"}", "{\n\n}", "{,}", "{\"a\":1,}",
        "{\"a\":\"\x01\"}", "{\"a\":\"\xED\xA0\x80\"}", "{\"a\":\"\xC0\x80\"}"}) {
    EXPECT_FALSE(takes(byte_compiler(), any_json, text)) << text;
  }
}

TEST(Compiler, AMaskHasNothingButTheVocabularyAndNoTokenWithoutText) {
  const Tokens tokens = byte_tokens();
  const auto words = (tokens.pieces.size() + 31) / 32;
  ASSERT_NE(tokens.pieces.size() % 32, 0u);
  const auto mask = byte_compiler().mask(byte_compiler().compile({Kind::ebnf, "root ::= [^b]*"}));
  for (int i = 0; i < 20; ++i) {
    const uint32_t* bits = mask->next();
    ASSERT_NE(bits, nullptr);
    EXPECT_FALSE(allows(bits, kNoTextId));
    EXPECT_TRUE(allows(bits, kEndId));
    EXPECT_EQ(bits[words - 1] >> (tokens.pieces.size() % 32), 0u);
    mask->accept('a');
  }
}

TEST(Compiler, AfterTheEndOnlyTheEndIsAllowed) {
  const auto mask = byte_compiler().mask(byte_compiler().compile({Kind::regex, "ab?"}));
  EXPECT_THROW(mask->accept(kEndId), CheckError);
  mask->next();
  mask->accept('a');
  EXPECT_TRUE(allows(mask->next(), kEndId));
  mask->accept(kEndId);
  for (int i = 0; i < 3; ++i) {
    const uint32_t* bits = mask->next();
    ASSERT_NE(bits, nullptr);
    for (int32_t id = 0; id < 258; ++id) EXPECT_EQ(allows(bits, id), id == kEndId) << id;
    EXPECT_THROW(mask->accept('b'), CheckError);
    mask->accept(kEndId);
  }
}

TEST(Compiler, TokensOutsideTheVocabularyAreRefused) {
  const auto mask = byte_compiler().mask(byte_compiler().compile({Kind::regex, ".*"}));
  for (const int32_t token : {-1, 1'000'000, kNoTextId}) EXPECT_THROW(mask->accept(token), CheckError) << token;
}

TEST(Compiler, WithoutTokensForWhatMustComeTheTextEnds) {
  Tokens tokens;
  tokens.pieces = {"a", ""};
  tokens.end_ids = {1};
  const Compiler compiler(tokens);
  const auto mask = compiler.mask(compiler.compile({Kind::regex, "ab"}));
  EXPECT_TRUE(allows(mask->next(), 0));
  mask->accept(0);
  EXPECT_FALSE(allows(mask->next(), 0));
  EXPECT_TRUE(allows(mask->next(), 1));
  mask->accept(1);
}

TEST(Compiler, AllIsAllowedMeansNull) {
  Tokens tokens;
  tokens.pieces = {"a", "b", "end"};
  tokens.end_ids = {2};
  const Compiler compiler(tokens);
  const auto mask = compiler.mask(compiler.compile({Kind::regex, "[ab]*"}));
  EXPECT_EQ(mask->next(), nullptr);
}

TEST(Compiler, SourcesOverTheLimitsAreRefused) {
  const std::string deep(60'000, '(');
  EXPECT_EQ(error_of(byte_compiler(), {Kind::regex, deep}),
            "the regular expression: brackets are nested deeper than 32 at character 34");
  EXPECT_EQ(error_of(byte_compiler(), {Kind::ebnf, cat("root ::= ", deep)}),
            "the grammar: brackets are nested deeper than 32 at character 43");
  std::string schema = "{\"type\":\"string\"}";
  for (int i = 0; i < 40; ++i) schema = cat(R"({"type":"array","items":)", schema, "}");
  EXPECT_EQ(error_of(byte_compiler(), {Kind::json_schema, schema}),
            "the JSON schema: the JSON is nested deeper than 32");
  EXPECT_EQ(error_of(byte_compiler(), {Kind::regex, std::string(70'000, 'a')}),
            "the regular expression has 70000 bytes, more than 65536");
  EXPECT_EQ(error_of(byte_compiler(), {Kind::regex, "a{1,1000000}"}),
            "the regular expression: a count is over 10000 at character 10");
}

TEST(Compiler, SourcesThatUnrollTooFarAreRefused) {
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "a{128}";
  EXPECT_NE(error_of(byte_compiler(), {Kind::regex, many}).find("is too large"), std::string::npos);
}

TEST(Compiler, TextsThatCannotEndAreRefused) {
  EXPECT_EQ(error_of(byte_compiler(), {Kind::ebnf, "root ::= \"a\" root"}), "the grammar: it matches no text");
  EXPECT_EQ(error_of(byte_compiler(), {Kind::json_schema, R"({"$ref":"#"})"}), "the JSON schema: it matches no text");
  // An alternative that cannot end is left out.
  const Source source{Kind::ebnf, "root ::= \"a\" dead | \"b\"\ndead ::= \"c\" dead"};
  EXPECT_TRUE(takes(byte_compiler(), source, "b"));
  EXPECT_FALSE(allows(byte_compiler().mask(byte_compiler().compile(source))->next(), 'a'));
}

std::string stars(int count) {
  std::string root = "root ::=", rules;
  for (int i = 0; i < count; ++i) {
    root += cat(" x", i);
    rules += cat("\nx", i, " ::= ([a-z ] x", i, ")?");
  }
  return root + rules;
}

TEST(Compiler, CompilingEndsWithItsTime) {
  const Compiler compiler(byte_tokens(), {.time = std::chrono::milliseconds(1)});
  EXPECT_EQ(error_of(compiler, {Kind::ebnf, stars(100)}), "the grammar takes longer to compile than 1 ms");
  compiler.compile({Kind::regex, "a"});  // and the next is as good as ever
}

// What xgrammar finds wrong with rules that were accepted is a fault of the program, and no 400.
TEST(Compiler, XgrammarsOwnFailuresAreNotTheCallers) {
  const auto fail = []() -> xgrammar::CompiledGrammar { throw std::runtime_error("no rule \x1b"); };
  try {
    compiled_within(std::chrono::milliseconds(1000), "the grammar", fail);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CheckError& error) {
    EXPECT_EQ(dynamic_cast<const Refused*>(&error), nullptr);
    EXPECT_STREQ(error.what(), "the grammar could not be compiled: \"no rule \\x1b\"");
  }
}

TEST(Compiler, MasksEndWithTheirTime) {
  // Every letter may belong to any of the rules, so that each more letter takes longer.
  const Source source{Kind::ebnf, "root ::= root root root | [a-z] | \"\""};
  const auto mask = byte_compiler().mask(byte_compiler().compile(source));
  const auto write_letters = [&] {
    for (int i = 0; i < 3000; ++i) {
      mask->next();
      mask->accept('a' + i % 26);
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(write_letters(), engine::ConstraintRefused);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THROW(mask->next(), engine::ConstraintRefused);
  EXPECT_THROW(mask->accept('a'), engine::ConstraintRefused);
}

// Thirty-two texts under a nested expression take no longer than one.
TEST(Compiler, TheTextsOfACallShareTheTimeOfTheirMasks) {
  const Compiler compiler(byte_tokens(), {.mask_time = {.at_once = std::chrono::milliseconds(10)}});
  const auto compiled = compiler.compile({Kind::ebnf, "root ::= root root root | [a-z] | \"\""});
  const auto allowance = compiler.allowance();
  std::vector<std::unique_ptr<engine::TokenMask>> masks;
  for (int i = 0; i < 32; ++i) masks.push_back(compiler.mask(compiled, allowance));
  const auto refused = [](engine::TokenMask& mask) {
    try {
      for (int i = 0; i < 3000; ++i) {
        mask.next();
        mask.accept('a');
      }
    } catch (const engine::ConstraintRefused&) {
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused(*masks[0]));
  EXPECT_TRUE(allowance->used_up());
  const auto begin = std::clock();
  for (const auto& mask : masks) EXPECT_THROW(mask->next(), engine::ConstraintRefused);
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC / 100);
  EXPECT_NE(compiler.mask(compiled)->next(), nullptr) << "another call has its own";
}

TEST(Compiler, OneSourceIsCompiledOnce) {
  const Compiler compiler(byte_tokens());
  const Source source{Kind::json_schema, R"({"type":"object","properties":{"a":{"type":"string"}}})"};
  const auto compiled = compiler.compile(source);
  EXPECT_EQ(compiler.compile(source), compiled);
  EXPECT_NE(compiler.compile({Kind::json_schema, source.text + " "}), compiled);
  EXPECT_NE(compiler.compile({Kind::regex, "a"}), compiler.compile({Kind::ebnf, "root ::= \"a\""}));
}

TEST(Compiler, ThreadsShareIt) {
  const Tokens tokens = byte_tokens();
  const Compiler compiler(tokens, {.cache_bytes = 1 << 20});
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    int ended = 0;
    for (int i = 0; i < 20; ++i) {
      const Source source{Kind::regex, cat("[a-z]{1,", 1 + random() % 10, "}x")};
      ended += walk(*compiler.mask(compiler.compile(source)), tokens, random).ended;
    }
    return ended;
  };
  std::vector<std::future<int>> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.push_back(std::async(std::launch::async, work, seed));
  for (auto& thread : threads) EXPECT_EQ(thread.get(), 20);
}

TEST(Compiler, VocabulariesThatDoNotFitAreRefused) {
  EXPECT_THROW(Compiler(Tokens{}), CheckError);
  EXPECT_THROW(Compiler(Tokens{.pieces = {"a"}, .end_ids = {1}}), CheckError);
}

TEST(Compiler, AVocabularyWithoutAnEndCannotBeConstrained) {
  const Compiler compiler(Tokens{.pieces = {"a"}, .end_ids = {}});
  expect_refused([&] { compiler.compile({Kind::regex, "a"}); }, "no end token");
}

}  // namespace
}  // namespace quire::grammar
