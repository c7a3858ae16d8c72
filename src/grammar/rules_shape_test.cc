#include "grammar/rules_shape.h"

#include <gtest/gtest.h>

#include "grammar/rules_testing.h"
#include "grammar/rules_text.h"

namespace quire::grammar {
namespace {

TEST(RulesShape, LongTextsAreSplitBetweenCharacters) {
  Rules rules = rules_of({choice({text("a" + std::string(300, 'x')), text(std::string(127, 'y') + "é")})});
  shape_rules(rules);
  const std::string a = "a" + std::string(127, 'x'), x = std::string(128, 'x'), rest = std::string(45, 'x');
  EXPECT_EQ(rules[1].body.text, a);
  EXPECT_EQ(rules[2].body.text, x);
  EXPECT_EQ(rules[3].body.text, rest);
  EXPECT_EQ(rules[4].body.text, std::string(127, 'y'));
  EXPECT_EQ(rules[5].body.text, "é");
}

TEST(RulesShape, NoRuleStaysLong) {
  std::vector<Expression> parts;
  for (int i = 0; i < 5000; ++i) parts.push_back(choice({text("ab"), text("cd")}));
  Rules rules = rules_of({sequence(std::move(parts))});
  shape_rules(rules);
  for (const Rule& rule : rules.rules) EXPECT_LE(rule.body.parts.size(), 300u);
}

std::string shaped(Expression expression) {
  Rules rules = rules_of({std::move(expression)});
  shape_rules(rules);
  return rules_text(rules);
}

TEST(RulesShape, LongCountsOfCharactersAreCounted) {
  const Expression letter = set_of({{'a', 'z'}});
  EXPECT_EQ(shaped(repeat(letter, 2, 100)), "root ::= r1\nr1[max_chars=100] ::= [a-z]{2,}\n");
  EXPECT_EQ(shaped(repeat(letter, 0, 64)), "root ::= [a-z]{0,64}\n");
  EXPECT_EQ(shaped(repeat(letter, 80, 80)), "root ::= [a-z]{80,80}\n");
  EXPECT_EQ(shaped(repeat(text("ab"), 0, 100)), "root ::= \"ab\"{0,100}\n");
}

}  // namespace
}  // namespace quire::grammar
