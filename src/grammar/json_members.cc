#include "grammar/json_members.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace quire::grammar {
namespace {

// At each point the beginning of the key is the beginning of some of the names. It goes on with a character that none
// of them has there and then as it likes, or with one that some have. A backslash could write such a character too, so
// there is none before the key has left the names.
Expression key_but(Rules& rules, JsonRules& json, std::span<const JsonMember> members) {
  struct Node {
    std::map<char32_t, size_t> next = {};
    bool is_name = false;
  };
  std::vector<Node> nodes(1);
  for (const JsonMember& member : members) {
    size_t at = 0;
    for (const char32_t code : code_points(member.name)) {
      const auto [place, is_new] = nodes[at].next.try_emplace(code, nodes.size());
      at = place->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[at].is_name = true;
  }
  std::vector<RuleId> ids;
  for (size_t i = 0; i < nodes.size(); ++i) ids.push_back(rules.add());
  for (size_t i = 0; i < nodes.size(); ++i) {
    std::vector<Expression> alternatives;
    std::vector<CodeRange> shared;
    if (!nodes[i].is_name) alternatives.push_back(text("\""));
    for (const auto& [code, node] : nodes[i].next) {
      shared.push_back({code, code});
      if (without({{code, code}}, plain_characters()).empty()) {
        alternatives.push_back(sequence({text(utf8(code)), refer(ids[node])}));
      }
    }
    alternatives.push_back(
        sequence({set_of(without(plain_characters(), code_set(std::move(shared)))), json.string_rest()}));
    rules[ids[i]] = {.body = choice(std::move(alternatives)), .ahead = json.after_string()};
  }
  return sequence({text("\""), refer(ids.front())});
}

Expression member(JsonRules& json, const Expression& key, const Expression& value) {
  return sequence({key, json.space(), text(":"), json.space(), value});
}

Expression after_members(JsonRules& json, const Expression& next, bool may_end) {
  Expression more = sequence({text(","), json.space(), next});
  return sequence({json.space(), may_end ? choice({text("}"), std::move(more)}) : std::move(more)});
}

int32_t less(int32_t most, int32_t taken) { return most == kUnlimited ? kUnlimited : most - taken; }

Expression more_items(JsonRules& json, const Expression& item, int32_t least, int32_t most) {
  return repeat(sequence({json.space(), text(","), json.space(), item}), std::max(0, least), most);
}

}  // namespace

// Two kinds of rules, made from the last member to the first: what may follow the members before this one, and what may
// follow the comma after them.
Expression json_object(Rules& rules, JsonRules& json, std::span<const JsonMember> members,
                       const std::optional<Expression>& other, const std::optional<Expression>& key_of_others) {
  Expression after = sequence({json.space(), text("}")}), next = nothing();
  if (other) {
    const RuleId id = rules.add();
    const Expression key = key_of_others     ? *key_of_others
                           : members.empty() ? json.string()
                                             : key_but(rules, json, members);
    next = refer(rules.add(sequence({member(json, key, *other), refer(id)})));
    Expression body = after_members(json, next, true);
    rules[id].body = std::move(body);
    after = refer(id);
  }
  bool may_end = true;
  for (auto at = members.rbegin(); at != members.rend(); ++at) {
    Expression taken = sequence({member(json, text(json_quoted(at->name)), at->value), after});
    next = refer(rules.add(at->required ? std::move(taken) : choice({std::move(taken), next})));
    may_end = may_end && !at->required;
    after = refer(rules.add(after_members(json, next, may_end)));
  }
  return sequence({text("{"), json.space(), may_end ? choice({text("}"), next}) : next});
}

Expression json_list(Rules& rules, JsonRules& json, std::span<const Expression> first,
                     const std::optional<Expression>& other, int32_t least, int32_t most) {
  const auto fixed = static_cast<int32_t>(first.size());
  const bool has_others = other && (most == kUnlimited || most > fixed);
  const Expression end = sequence({json.space(), text("]")});
  Expression rest = least > fixed ? nothing() : end;  // after the first items
  if (has_others && fixed > 0) {
    rest = sequence({more_items(json, *other, least - fixed, less(most, fixed)), end});
  } else if (has_others) {
    const Expression some = sequence({json.space(), *other, more_items(json, *other, least - 1, less(most, 1)), end});
    rest = least > 0 ? some : choice({end, some});
  }
  for (int32_t i = std::min(fixed, most == kUnlimited ? fixed : most) - 1; i >= 0; --i) {
    if (i + 1 == most) rest = end;
    const Expression comma = i == 0 ? text("") : sequence({json.space(), text(",")});
    Expression item = sequence({comma, json.space(), first[i], rest});
    rest = refer(rules.add(i >= least ? choice({std::move(item), end}) : std::move(item)));
  }
  return sequence({text("["), rest});
}

}  // namespace quire::grammar
