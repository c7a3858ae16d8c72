#include "grammar/json_rules.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "grammar/json_numbers.h"

namespace quire::grammar {
namespace {

constexpr int32_t kMostIndentation = 16;
// Strings of up to this many characters have a rule for every length.
constexpr int32_t kMostUnrolledLength = 32;

Expression hexadecimal(int32_t digits) {
  return repeat(set_of({{U'0', U'9'}, {U'A', U'F'}, {U'a', U'f'}}), digits, digits);
}

Expression one_of(std::u32string_view codes) {
  std::vector<CodeRange> ranges;
  for (const char32_t code : codes) ranges.push_back({code, code});
  return set_of(code_set(std::move(ranges)));
}

std::string json_written(char32_t code) {
  switch (code) {
    case U'"':
      return "\\\"";
    case U'\\':
      return "\\\\";
    case U'\b':
      return "\\b";
    case U'\f':
      return "\\f";
    case U'\n':
      return "\\n";
    case U'\r':
      return "\\r";
    case U'\t':
      return "\\t";
    default:
      break;
  }
  if (code >= 0x20) return utf8(code);
  char escaped[8];
  std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(code));
  return escaped;
}

std::string json_written(std::string_view text) {
  std::string written;
  for (const char32_t code : code_points(text)) written += json_written(code);
  return written;
}

// The characters of a set that stand for themselves or, where there are none, their escapes.
Expression set_inside_quotes(const CodeSet& set) {
  CodeSet bare = without(set, all_but(plain_characters()));
  if (!bare.empty()) return set_of(std::move(bare));
  std::vector<Expression> escapes;
  for (const CodeRange& range : set) {
    for (char32_t code = range.first; code <= range.last; ++code) escapes.push_back(text(json_written(code)));
  }
  return choice(std::move(escapes));
}

}  // namespace

const CodeSet& plain_characters() {
  static const CodeSet set = all_but({{0, 0x1F}, {U'"', U'"'}, {U'\\', U'\\'}});
  return set;
}

std::string json_quoted(std::string_view utf8) { return cat("\"", json_written(utf8), "\""); }

Expression inside_quotes(const Expression& value) {
  using Kind = Expression::Kind;
  if (value.kind == Kind::text) return text(json_written(value.text));
  if (value.kind == Kind::set) return set_inside_quotes(value.set);
  std::vector<Expression> parts;
  for (const Expression& part : value.parts) parts.push_back(inside_quotes(part));
  if (value.kind == Kind::repeat) return repeat(std::move(parts.front()), value.least, value.most);
  return value.kind == Kind::sequence ? sequence(std::move(parts)) : choice(std::move(parts));
}

// The rule is there before it is filled, so that it may refer to itself.
template <class Fill>
Expression JsonRules::once(std::optional<RuleId>& id, const Fill& fill) {
  if (!id) {
    id = rules_.add();
    Expression body = fill();
    rules_[*id].body = std::move(body);
  }
  return refer(*id);
}

Expression JsonRules::space() {
  return once(space_, [] {
    const Expression indentation = repeat(one_of(U" \t"), 0, kMostIndentation);
    return choice({text(""), text(" "), sequence({text("\n"), indentation})});
  });
}

Expression JsonRules::value() {
  return once(value_, [&] {
    return choice({object(), array(), string(), any_number(), text("true"), text("false"), text("null")});
  });
}

Expression JsonRules::object() {
  return once(object_, [&] {
    const Expression member = sequence({string(), space(), text(":"), space(), value()});
    const Expression more = once(members_, [&] {
      const Expression next = sequence({space(), text(","), space(), member, refer(*members_)});
      return choice({sequence({space(), text("}")}), next});
    });
    return sequence({text("{"), space(), choice({text("}"), sequence({member, more})})});
  });
}

Expression JsonRules::array() {
  return once(array_, [&] {
    const Expression more = once(items_, [&] {
      const Expression next = sequence({space(), text(","), space(), value(), refer(*items_)});
      return choice({sequence({space(), text("]")}), next});
    });
    return sequence({text("["), space(), choice({text("]"), sequence({value(), more})})});
  });
}

Expression JsonRules::escape() {
  return once(escape_, [] {
    const Expression other = sequence({one_of(U"0123456789abcefABCEF"), hexadecimal(3)});
    const Expression below_surrogates = sequence({one_of(U"dD"), one_of(U"01234567"), hexadecimal(2)});
    const Expression pair = sequence({one_of(U"dD"), one_of(U"89abAB"), hexadecimal(2), text("\\u"), one_of(U"dD"),
                                      one_of(U"cdefCDEF"), hexadecimal(2)});
    return choice({one_of(U"\"\\/bfnrt"), sequence({text("u"), choice({other, below_surrogates, pair})})});
  });
}

// After a string come a colon, a comma or a closing bracket.
Expression JsonRules::after_string() { return sequence({space(), one_of(U",:]}")}); }

Expression JsonRules::string_rest() {
  const Expression rest = once(string_rest_, [&] {
    return choice({text("\""), sequence({set_of(plain_characters()), refer(*string_rest_)}),
                   sequence({text("\\"), escape(), refer(*string_rest_)})});
  });
  rules_[*string_rest_].ahead = after_string();
  return rest;
}

Expression JsonRules::string_rest(int32_t least, int32_t most) {
  if (least == 0 && most == kUnlimited) return string_rest();
  const auto [known, is_new] = bounded_rests_.try_emplace({least, most}, 0);
  if (!is_new) return refer(known->second);
  const RuleId id = known->second = rules_.add();
  std::vector<Expression> alternatives;
  if (least == 0) alternatives.push_back(text("\""));
  if (most != 0) {
    const Expression rest = string_rest(std::max(0, least - 1), most == kUnlimited ? kUnlimited : most - 1);
    alternatives.push_back(sequence({set_of(plain_characters()), rest}));
    alternatives.push_back(sequence({text("\\"), escape(), rest}));
  }
  rules_[id] = {.body = choice(std::move(alternatives)), .ahead = after_string()};
  return refer(id);
}

Expression JsonRules::string() { return sequence({text("\""), string_rest()}); }

Expression JsonRules::string(int32_t least, int32_t most) {
  if (std::max(least, most) <= kMostUnrolledLength) return sequence({text("\""), string_rest(least, most)});
  // Without escapes, so that it is a count of single characters (rules_shape.h).
  return sequence({text("\""), repeat(set_of(plain_characters()), least, most), text("\"")});
}

Expression JsonRules::string_like(const Expression& value) {
  return sequence({text("\""), inside_quotes(value), text("\"")});
}

}  // namespace quire::grammar
