// A grammar as data: what the readers of JSON schema, regular expressions and EBNF make, and what xgrammar is told.
//
// All that xgrammar sees of a source from outside is the text that rules_text() writes from these, so that nothing but
// the few forms below reaches its parsers, and the limits can be checked before.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_set.h"

namespace quire::grammar {

using RuleId = int32_t;
inline constexpr int32_t kUnlimited = -1;

struct Expression {
  enum class Kind : uint8_t {
    text,      // these bytes, whole characters; none: the empty text
    set,       // one character of these; an empty set matches nothing
    rule,      // what that rule matches
    sequence,  // all parts, one after the other
    choice,    // one of the parts; no parts match nothing
    repeat     // the only part, `least` to `most` times
  };
  Kind kind = Kind::text;
  std::string text = {};
  CodeSet set = {};
  RuleId rule = -1;
  std::vector<Expression> parts = {};
  int32_t least = 0;
  int32_t most = 0;  // or kUnlimited

  bool is_empty_text() const { return kind == Kind::text && text.empty(); }
};

// These keep expressions flat: sequences do not lie in sequences, neighbouring texts are one, and single characters
// that are alternatives are one set, which xgrammar answers much faster.
Expression text(std::string_view bytes);
Expression set_of(CodeSet set);
Expression refer(RuleId rule);
Expression sequence(std::vector<Expression> parts);
Expression choice(std::vector<Expression> parts);
Expression repeat(Expression part, int32_t least, int32_t most = kUnlimited);
inline Expression nothing() { return choice({}); }  // matches no text, not even the empty one

struct Rule {
  Expression body;
  // What surely follows the rule wherever it stands: a hint that makes masks faster. Empty text: nothing is known.
  Expression ahead = {};
  int32_t most_characters = kUnlimited;  // of what the rule matches, which must be able to end after any character
};

struct Rules {
  std::vector<Rule> rules;  // the first is the root

  RuleId add(Expression body = nothing());
  Rule& operator[](RuleId id) { return rules[id]; }
  const Rule& operator[](RuleId id) const { return rules[id]; }
};

// Removes alternatives that match no text at all, so that every beginning of a text that the rules allow can be
// finished. Throws Refused when nothing is left.
void remove_dead_ends(Rules& rules);

// About how many places there are in what the root leads to, once counts are unrolled: compiling costs about as much.
int64_t places(const Rules& rules);
int64_t places(const Expression& expression);  // without what it refers to

}  // namespace quire::grammar
