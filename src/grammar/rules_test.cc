#include "grammar/rules.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "grammar/rules_testing.h"
#include "grammar/rules_text.h"

namespace quire::grammar {
namespace {

TEST(Rules, ExpressionsAreFlat) {
  const Expression flat = sequence({text("a"), sequence({text("b"), refer(1)}), text(""), text("c")});
  EXPECT_EQ(rules_text(rules_of({flat, text("x")})), "root ::= \"ab\" r1 \"c\"\nr1 ::= \"x\"\n");
  EXPECT_TRUE(sequence({}).is_empty_text());
}

TEST(Rules, SingleCharactersThatAreAlternativesAreOneSet) {
  EXPECT_EQ(rules_text(rules_of({choice({text("a"), text("bc"), set_of({{'b', 'd'}}), text("é")})})),
            "root ::= [a-d\\u00e9] | \"bc\"\n");
}

TEST(Rules, EveryCharacterWithAMeaningIsEscaped) {
  EXPECT_EQ(rules_text(rules_of({sequence({text("a\"\n\\😀"), set_of({{'-', '-'}, {']', '^'}})})})),
            "root ::= \"a\\u0022\\u000a\\u005c\\U0001f600\" [\\u002d\\u005d-\\u005e]\n");
}

TEST(Rules, CountsAreWritten) {
  const Expression a = text("ab");
  EXPECT_EQ(rules_text(rules_of({sequence({repeat(a, 0), repeat(a, 2), repeat(repeat(a, 0, 3), 1, 2)})})),
            "root ::= \"ab\"* \"ab\"{2,} (\"ab\"{0,3}){1,2}\n");
  EXPECT_TRUE(repeat(a, 0, 0).is_empty_text());
}

TEST(Rules, DeadEndsAreRemoved) {
  Rules rules = rules_of(
      {choice({sequence({text("ab"), refer(1)}), text("cd"), repeat(refer(1), 0)}), sequence({text("x"), refer(1)})});
  remove_dead_ends(rules);
  EXPECT_EQ(rules_text(rules), "root ::= \"cd\" | \"\"\n");
}

TEST(Rules, OnlyDeadEndsAreRefused) {
  Rules rules = rules_of({refer(1), refer(0)});
  EXPECT_THROW(remove_dead_ends(rules), CheckError);
  Rules empty = rules_of({set_of({})});
  EXPECT_THROW(remove_dead_ends(empty), CheckError);
}

TEST(Rules, PlacesCountWhatIsUnrolledAndReached) {
  EXPECT_LT(places(rules_of({text("abc"), text(std::string(1000, 'x'))})), 10);
  EXPECT_GE(places(rules_of({repeat(text("abc"), 100, 100)})), 300);
  EXPECT_LT(places(rules_of({repeat(text("abc"), 10'000, 10'000)})), 1000);
  EXPECT_GE(places(rules_of({refer(1), text(std::string(1000, 'x'))})), 1000);
}

}  // namespace
}  // namespace quire::grammar
