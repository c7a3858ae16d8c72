#include "text/normalizer.h"

#include <gtest/gtest.h>

#include <string>

#include "base/check.h"

namespace quire::text {
namespace {

TEST(Normalizer, NormalForms) {
  EXPECT_EQ(normalized("e\u0301", UnicodeForm::nfc), "\u00E9");
  EXPECT_EQ(normalized("\u00E9", UnicodeForm::nfd), "e\u0301");
  EXPECT_EQ(normalized("\uFB01\u00B2", UnicodeForm::nfkc), "fi2");
  EXPECT_EQ(normalized("\uFB01\u00B2\u00E9", UnicodeForm::nfkd), "fi2e\u0301");
  EXPECT_EQ(normalized("\uFB01\u00B2", UnicodeForm::nfc), "\uFB01\u00B2");
  EXPECT_EQ(normalized("\u1112\u1161\u11AB", UnicodeForm::nfc), "\uD55C");
  EXPECT_EQ(normalized("a\u0315\u0300\u05AE\u0062", UnicodeForm::nfc), "\u00E0\u05AE\u0315b");  // marks are ordered
  EXPECT_EQ(normalized("\u0958", UnicodeForm::nfc), "\u0915\u093C");  // excluded from composing
  EXPECT_EQ(normalized("\u212B", UnicodeForm::nfc), "\u00C5");
  EXPECT_EQ(normalized(std::string("a\0b", 3), UnicodeForm::nfd), std::string("a\0b", 3));
}

TEST(Normalizer, LongRunsOfMarksAreSortedAndNotSwapped) {
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i) marks += "\u0301";  // class 230
  for (int i = 0; i < 100'000; ++i) marks += "\u0323";  // class 220, goes before
  const std::string text = normalized(marks, UnicodeForm::nfc);
  EXPECT_EQ(text.substr(0, 5), "\u1EA1\u0323");  // one dot below has joined the letter
  EXPECT_EQ(text.substr(text.size() - 2), "\u0301");
}

TEST(Normalizer, StepsRunInTheirOrder) {
  const Normalizer llama({Prepend{"\u2581"}, Replace{" ", "\u2581"}});
  EXPECT_EQ(llama("a b"), "\u2581a\u2581b");
  EXPECT_EQ(llama(" "), "\u2581\u2581");
  EXPECT_EQ(llama(""), "");
  const Normalizer collapse({Strip{}, ReplaceMatches{" {2,}", " "}});
  EXPECT_EQ(collapse(" \u3000a   b  "), "a b");
  EXPECT_EQ(Normalizer({Strip{.left = false}})(" a "), " a");
  EXPECT_EQ(Normalizer({})("as it is"), "as it is");
}

TEST(Normalizer, BadStepsAreRefused) {
  EXPECT_THROW(Normalizer({ReplaceMatches{"(", ""}}), CheckError);
  EXPECT_THROW(Normalizer({Replace{"", "x"}}), CheckError);
}

}  // namespace
}  // namespace quire::text
