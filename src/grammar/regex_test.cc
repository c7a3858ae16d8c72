#include "grammar/regex.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "grammar/compiler.h"
#include "grammar/testing.h"
#include "grammar/testing_regex.h"

namespace quire::grammar {
namespace {

class Regexes : public testing::TestWithParam<const char*> {};

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 128; });
}

// At every step of some walks, exactly those tokens of ASCII characters are allowed that PCRE2 lets the text go on
// with.
TEST_P(Regexes, MasksAreExact) {
  const RegexJudge judge(GetParam());
  const Tokens tokens = byte_tokens();
  const auto compiled = byte_compiler().compile({Kind::regex, GetParam()});
  std::mt19937 random(3);
  for (int i = 0; i < 10; ++i) {
    const auto mask = byte_compiler().mask(compiled);
    std::string text;
    for (int step = 0; step < 60; ++step) {
      const uint32_t* bits = mask->next();
      std::vector<int32_t> allowed;
      for (int32_t id = 1; id < std::ssize(tokens.pieces); ++id) {
        const std::string& piece = tokens.pieces[id];
        if (piece.empty() || !is_ascii(piece)) continue;
        if (allows(bits, id)) allowed.push_back(id);
        if (piece == "\r") continue;  // a dot leaves it out, PCRE2's does not
        ASSERT_EQ(allows(bits, id), judge.begins(text + piece)) << text << " + " << piece;
      }
      ASSERT_EQ(allows(bits, kEndId), judge.matches(text)) << text;
      if (allowed.empty()) break;
      const int32_t id = allowed[random() % allowed.size()];
      text += tokens.pieces[id];
      mask->accept(id);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Features, Regexes,
                         testing::Values("", "abc", "a|b|cd", "^abc$", "^a$|^b$", "(ab)*c", "(?:a|bc){2,3}", "a?b+c*",
                                         "[a-cx-z]+[^a-z]", "\\d{3}-\\d{4}", "\\w+@\\w+\\.(com|org)", "[\\w.-]*!",
                                         "\\s\\S\\W\\D", ".", ".*x", "[a\\]b]+", "a{0}b", "a{2,}b", "x{a}", "(a|)(b|)",
                                         "\\x41\\u0042", "((a|b)*c)+d?", "(?<year>\\d{4})", "[^\\d\\s]{1,3}",
                                         "a*?b+?c??", "\\{\\}\\(\\)\\[\\]\\.\\*\\+\\?\\|\\^\\$\\\\\\/", "(a{1,3}){2}",
                                         "[\\b-\\n]", "a{100,130}", "[ab]{3,40}c", "([xy][ab]{0,40}z)+", "[ab]{33}",
                                         "[ab]{35,}b", "([ab]{0,40}a){2}", "[ab]{0,33}[bc]{2,34}",
                                         "[+-]?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?"));

TEST(Regex, CharactersBeyondAsciiAreWhole) {
  const Source source{Kind::regex, "[é-日]+|\\u{1F600}"};
  EXPECT_TRUE(takes(byte_compiler(), source, "éé日"));
  EXPECT_TRUE(takes(byte_compiler(), source, "😀"));
  EXPECT_FALSE(takes(byte_compiler(), source, "é\xE6\x97"));
  EXPECT_FALSE(takes(byte_compiler(), source, "è"));
  EXPECT_FALSE(takes(byte_compiler(), {Kind::regex, "[^a]"}, "\xFF"));
}

TEST(Regex, WhatIsNotRegularOrNotHereIsRefused) {
  for (const char* source :
       {"(",       ")",      "a)",          "(a",      "[",     "[a",      "[]",     "[^]",    "*",     "a**",
        "a{2}{3}", "a{3,2}", "+a",          "a*+",     "(?=a)", "(?!a)",   "(?<=a)", "(?<!a)", "(?i)a", "(?>a)",
        "(?P=x)",  "(a)\\1", "\\k<a>",      "\\b",     "\\B",   "\\A",     "\\Z",    "\\p{L}", "\\",    "\\x4",
        "\\u12",   "\\u{",   "\\u{110000}", "\\ud800", "\\x00", "a^",      "a$b",    "(^a)",   "(a$)",  "[z-a]",
        "[a-\\d]", "\\c",    "\\0",         "\xFF",    "(?<n",  "a{10001}"}) {
    EXPECT_THROW(byte_compiler().compile({Kind::regex, source}), CheckError) << source;
  }
}

}  // namespace
}  // namespace quire::grammar
