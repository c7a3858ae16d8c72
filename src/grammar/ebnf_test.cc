#include "grammar/ebnf.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "grammar/compiler.h"
#include "grammar/testing.h"

namespace quire::grammar {
namespace {

bool ebnf_takes(const std::string& source, const std::string& text) {
  return takes(byte_compiler(), {Kind::ebnf, source}, text);
}

TEST(Ebnf, ArithmeticIsTaken) {
  const std::string source = R"x(# sums of products
root   ::= sum
sum    ::= product (("+" | "-") product)*   # left to right
product ::= factor ( [*/] factor )*
factor ::= [0-9]+ | "(" sum ")"
)x";
  for (const char* text : {"1", "12+3*4", "(1+2)*3", "((((7))))/2-1"}) EXPECT_TRUE(ebnf_takes(source, text)) << text;
  for (const char* text : {"", "+", "1+", "(1", "1)", "a", "1 + 2"}) EXPECT_FALSE(ebnf_takes(source, text)) << text;
}

TEST(Ebnf, WalksStayInTheLanguage) {
  const Tokens tokens = byte_tokens();
  const auto compiled =
      byte_compiler().compile({Kind::ebnf, "root ::= \"\" | \"a\" root \"b\" | \"[\" root \"]\" root"});
  std::mt19937 random(5);
  for (int i = 0; i < 50; ++i) {
    const Walk walked = walk(*byte_compiler().mask(compiled), tokens, random, 400);
    std::string open;
    for (const char c : walked.text) {
      if (c == 'a' || c == '[') open += c;
      if (c == 'b' || c == ']') {
        ASSERT_FALSE(open.empty()) << walked.text;
        ASSERT_EQ(open.back(), c == 'b' ? 'a' : '[') << walked.text;
        open.pop_back();
      }
    }
    ASSERT_TRUE(!walked.ended || open.empty()) << walked.text;
  }
}

TEST(Ebnf, RulesMayBeLeftRecursiveOrEmpty) {
  EXPECT_TRUE(ebnf_takes("root ::= root \"a\" | \"b\"", "baaa"));
  EXPECT_TRUE(ebnf_takes("root ::= root | \"b\"", "b"));
  EXPECT_TRUE(ebnf_takes("root ::= (\"\")* (\"\"){3} x? \"b\"\nx ::= \"\" | x x", "b"));
  EXPECT_TRUE(ebnf_takes("root ::= (\"a\"*)*", "aaa"));
  EXPECT_TRUE(ebnf_takes("root ::= ()", ""));
}

TEST(Ebnf, CountsAndEscapesAreRead) {
  EXPECT_TRUE(ebnf_takes("root ::= \"a\"{2} \"b\"{1,} \"c\"{ 0 , 2 } \"d\"?", "aabbcc"));
  EXPECT_FALSE(ebnf_takes("root ::= \"a\"{2} \"b\"{1,} \"c\"{ 0 , 2 } \"d\"?", "aabccc"));
  EXPECT_TRUE(ebnf_takes(R"(root ::= "\n\t\"\\\x41\u0042\U0001F600" [\]\-\x43^] [^a-z\n])", "\n\t\"\\AB😀C0"));
  EXPECT_TRUE(ebnf_takes("root ::= [a-]+", "-a"));
}

TEST(Ebnf, RulesMayStandInAnyOrderAndOnManyLines) {
  EXPECT_TRUE(ebnf_takes("b ::= \"2\"\n\nroot ::= b\n  | c\nc\n::= \"3\"", "3"));
}

TEST(Ebnf, ExactCharactersAreAllowed) {
  const auto mask = byte_compiler().mask(byte_compiler().compile({Kind::ebnf, "root ::= \"ab\" | \"ac\" [0-9]"}));
  const auto allowed = [&] {
    std::string characters;
    const uint32_t* bits = mask->next();
    for (int32_t code = 0; code < 256; ++code) {
      if (allows(bits, code)) characters += static_cast<char>(code);
    }
    return characters;
  };
  EXPECT_EQ(allowed(), "a");
  mask->accept('a');
  EXPECT_EQ(allowed(), "bc");
  mask->accept('c');
  EXPECT_EQ(allowed(), "0123456789");
}

TEST(Ebnf, WrongSyntaxIsRefused) {
  for (const char* source : {"",
                             "a ::= \"x\"",
                             "root",
                             "root ::=",
                             "root = \"a\"",
                             "root ::= a",
                             "root ::= \"a",
                             "root ::= [a",
                             "root ::= (\"a\"",
                             "root ::= \"a\")",
                             "root ::= \"a\"{",
                             "root ::= \"a\"{2,1}",
                             "root ::= \"a\"{-1}",
                             "root ::= \"a\"{20000}",
                             "root ::= *",
                             "root ::= | ",
                             "root ::= \"a\"\nroot ::= \"b\"",
                             "root ::= \"\\q\"",
                             "root ::= [z-a]",
                             "root ::= \"\\u12\"",
                             "root ::= \"\\x00\"",
                             "root ::= \"\\ud800\"",
                             "root ::= []",
                             "root ::= \xFF",
                             "root ::= \"a\" (= \"b\")",
                             "root ::= Token(1)",
                             "root ::= TagDispatch((\"a\", root))",
                             "root ::= Regex(\"a*\")",
                             "root[max_tokens=3] ::= \"a\"",
                             "root ::= \"a\"** ",
                             "1 ::= \"a\""}) {
    EXPECT_THROW(byte_compiler().compile({Kind::ebnf, source}), CheckError) << source;
  }
}

TEST(Ebnf, ErrorsSayWhereAndWhat) {
  try {
    byte_compiler().compile({Kind::ebnf, "root ::= item\n"});
    ADD_FAILURE();
  } catch (const CheckError& error) {
    EXPECT_STREQ(error.what(), "the grammar: there is no rule \"item\"");
  }
}

}  // namespace
}  // namespace quire::grammar
