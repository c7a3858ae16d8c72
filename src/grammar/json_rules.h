// The pieces that JSON texts are made of, as rules, each made when it is first asked for.
//
// What they match is valid JSON, in whole characters, and every parser reads it: no lone surrogates, no number beyond a
// double. They bound what a model could go on with for ever and say nothing: white space is one space, or a line's end
// and some indentation; numbers have at most 18 digits before and 17 after the point.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/rules.h"

namespace quire::grammar {

class JsonRules {
 public:
  explicit JsonRules(Rules& rules) : rules_(rules) {}

  Expression space();  // what may stand between two parts of a JSON text; also nothing
  Expression value();
  Expression object();
  Expression array();
  Expression string();
  Expression string(int32_t least, int32_t most);   // counted in characters of its value
  Expression string_like(const Expression& value);  // whose value matches; characters that JSON writes with a backslash
                                                    // only where nothing else is possible

  // The rest of a string after its first quote, with the last; and what surely comes then.
  Expression string_rest();
  Expression after_string();

 private:
  Expression string_rest(int32_t least, int32_t most);
  Expression escape();  // what stands after the backslash
  template <class Fill>
  Expression once(std::optional<RuleId>& id, const Fill& fill);

  Rules& rules_;
  std::optional<RuleId> space_, value_, object_, members_, array_, items_, string_rest_, escape_;
  std::map<std::pair<int32_t, int32_t>, RuleId> bounded_rests_;
};

std::string json_quoted(std::string_view utf8);  // as JSON writes it, quotes included

// What JSON may write inside quotes.
const CodeSet& plain_characters();                  // as themselves
Expression inside_quotes(const Expression& value);  // for a value that matches

}  // namespace quire::grammar
